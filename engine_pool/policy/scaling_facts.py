"""What a check of scaling looks at, what it remembers, and what it says. Values only.

Time is seconds of one clock for all checks of a pool; live it is the wall clock, since checks are
made by different processes, and a remembered time that lies in the future counts as now.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from engine_pool.policy.standing import Standing
from engine_pool.types import InstanceName


class Signal(StrEnum):
    """What a decision follows."""

    FREENESS = "freeness"
    """The average, and the band."""
    TTFT = "ttft"
    """The share of requests within their TTFT target."""
    SCHEDULE = "schedule"
    """Bounds of a window of the schedule."""
    DEMAND = "demand"
    """Requests wait for a pool without an instance."""
    IDLE = "idle"
    """Nothing has run for long."""
    BOUNDS = "bounds"
    """The pool's own least and most."""


class Barrier(StrEnum):
    """What forbade a change that was due; a page may count by it."""

    NONE = ""
    COOL_DOWN = "cool-down"
    MOST = "most"
    LEAST = "least"
    STARTING = "starting"
    SURVIVORS = "survivors"
    """Those who stay could not carry the load."""
    SILENT = "silent"
    ATTAINMENT = "attainment"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class Attainment:
    """Of the requests of the last minutes: those within their TTFT target, queue included."""

    share: float
    """0 to 1."""
    requests: int


@dataclass(frozen=True, slots=True)
class Picture:
    """A pool as of one moment."""

    standings: Sequence[Standing] = ()
    """Fresh reports of instances that serve, and of those that everything leaves (draining)."""
    starting_tokens: Sequence[int] = ()
    """KV capacity of each instance that starts, or is to start."""
    silent: int = 0
    """Instances that should serve and have no report that can be used."""
    undrainable: Collection[InstanceName] = ()
    """Draining ones whose drain the loop itself began, and may take back."""
    asleep: Sequence[InstanceName] = ()
    """Stopped by the loop itself; the one to wake first is the first."""
    away: int = 0
    """Instances that people have cordoned, drained or stopped, or whose node is wanted away."""
    failing: int = 0
    """Instances in a crash loop: they neither serve nor start."""
    attainment: Attainment | None = None
    """None: too few requests to say, or nobody asks for it."""
    is_demanded: bool = False
    """Requests wait at the gateway for a first instance."""

    @property
    def serving(self) -> list[Standing]:
        return sorted((s for s in self.standings if s.is_open), key=lambda s: s.instance)

    @property
    def leaving(self) -> list[Standing]:
        return [s for s in self.standings if s.is_draining]

    @property
    def count(self) -> int:
        """Instances that serve or will; those without a report may."""
        return len(self.serving) + len(self.starting_tokens) + self.silent

    @property
    def is_idle(self) -> bool:
        """Something serves, and nothing runs or waits anywhere."""
        return bool(self.serving) and all(s.is_idle for s in self.standings)


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What is remembered between two checks; None: it is not so, or never was."""

    under_since_s: float | None = None
    over_since_s: float | None = None
    spare_since_s: float | None = None
    """Since when it has been over the band, and the others could have carried the load of the one
    with the fewest requests."""
    ttft_under_since_s: float | None = None
    idle_since_s: float | None = None
    silent_since_s: float | None = None
    """Since when there has been an instance without a report at every check."""
    grown_s: float | None = None
    """When an instance was added, woken or undrained last."""
    shrunk_s: float | None = None
    starting_s: float | None = None
    """When an instance was starting last: how late first tokens were until then says nothing of
    the pool that there is now."""

    def settled(self, now_s: float) -> "ScalingState":
        """Returns it with what is no number forgotten, and what lies in the future brought to
        now: a clock that was set back must not stop scaling for an hour."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        known = {n: min(v, now_s) for n, v in values.items() if v is not None and math.isfinite(v)}
        return ScalingState(**known)

    def after(self, decision: "ScalingDecision", now_s: float) -> "ScalingState":
        """Returns what is left once a decision has been acted on.

        How long the average has been under the band goes on after a growth: a larger shortage is
        answered at once. After a drain everything begins anew.
        """
        if decision.drain is not None:
            return replace(self.after_gap(), shrunk_s=now_s)
        if decision.is_growth:
            return replace(self, grown_s=now_s, ttft_under_since_s=None, idle_since_s=None)
        return self

    def after_gap(self) -> "ScalingState":
        """Returns what still counts when nobody has looked for long: not how it was since then."""
        return ScalingState(
            grown_s=self.grown_s, shrunk_s=self.shrunk_s, starting_s=self.starting_s
        )


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What one check says; at most one of add, wake, undrain and drain."""

    reason: str
    add: int = 0
    """Instances to start beyond those that there are."""
    drain: InstanceName | None = None
    undrain: InstanceName | None = None
    wake: InstanceName | None = None
    """One that the loop had stopped, to start again."""
    average_steps: float | None = None
    """Average freeness; plus infinity when nothing runs, None without a report."""
    signal: Signal = Signal.FREENESS
    barrier: Barrier = Barrier.NONE
    is_hold: bool = False
    """The picture is not whole enough for a decision."""

    @property
    def is_change(self) -> bool:
        return self.is_growth or self.drain is not None

    @property
    def is_growth(self) -> bool:
        return self.add > 0 or self.undrain is not None or self.wake is not None
