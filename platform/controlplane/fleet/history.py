"""What must be remembered between two reports: rates, progress, preemptions of the last minute.

Counters of an instance start anew with each incarnation, so only growth counts. Time is passed in.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from controlplane.fleet.picture import Progress
from engine_pool.types import InstanceLoad, InstanceName

KEPT_S: Final = 60.0
"""The longest window that a page asks for."""
POINT_EVERY_S: Final = 0.5
"""Finest resolution of a window's start."""


class Counter:
    """A sum that only grows, with its past of `KEPT_S`."""

    def __init__(self) -> None:
        self.total = 0
        self._past: deque[tuple[float, int]] = deque()

    def add(self, amount: int, now_s: float) -> None:
        if not self._past or now_s - self._past[-1][0] >= POINT_EVERY_S:
            self._past.append((now_s, self.total))
        self.total += amount
        # The point before the window stays: a window starts at or before its nominal length.
        while len(self._past) > 1 and self._past[1][0] <= now_s - KEPT_S:
            self._past.popleft()

    def grown(self, window_s: float, now_s: float) -> int:
        """Returns the growth within the window, or since the beginning when that is shorter."""
        return self.total - self._start(window_s, now_s)[1]

    def rate(self, window_s: float, now_s: float) -> float | None:
        """Returns the growth a second; None before there is a second of past."""
        started_s, total = self._start(window_s, now_s)
        past_s = now_s - started_s
        return (self.total - total) / past_s if past_s >= 1.0 else None

    def _start(self, window_s: float, now_s: float) -> tuple[float, int]:
        found = (now_s, self.total)
        for point in reversed(self._past):
            found = point
            if point[0] <= now_s - window_s:
                break
        return found


@dataclass(slots=True)
class _Seen:
    incarnation: str
    steps_total: int
    preemptions_total: int
    output_tokens_total: int
    prompt_tokens_total: int
    requests_ended_total: int
    last_step_unix_s: float
    preemptions: Counter = field(default_factory=Counter)


class PoolHistory:
    """The past of one pool in one process. Fed with all loads, about twice a second."""

    def __init__(self) -> None:
        self.output_tokens = Counter()
        self.prompt_tokens = Counter()
        self.requests_ended = Counter()
        self._seen: dict[InstanceName, _Seen] = {}

    def feed(self, loads: Iterable[InstanceLoad], now_unix_s: float) -> None:
        """Takes the newest reports. Instances that are not among them are forgotten."""
        output = prompt = ended = 0
        seen: dict[InstanceName, _Seen] = {}
        for load in loads:
            before = self._seen.get(load.instance)
            if before is None or before.incarnation != load.incarnation:
                seen[load.instance] = _first_sight(load, now_unix_s)
                continue
            seen[load.instance] = before
            output += max(0, load.output_tokens_total - before.output_tokens_total)
            prompt += max(0, load.prompt_tokens_total - before.prompt_tokens_total)
            ended += max(0, load.requests_ended_total - before.requests_ended_total)
            _update(before, load, now_unix_s)
        self._seen = seen
        self.output_tokens.add(output, now_unix_s)
        self.prompt_tokens.add(prompt, now_unix_s)
        self.requests_ended.add(ended, now_unix_s)

    def progress(self, instance: InstanceName, now_unix_s: float) -> Progress | None:
        """Returns what the past says about an instance; None when it was never seen."""
        seen = self._seen.get(instance)
        if seen is None:
            return None
        return Progress(seen.last_step_unix_s, seen.preemptions.grown(KEPT_S, now_unix_s))


def _first_sight(load: InstanceLoad, now_unix_s: float) -> _Seen:
    return _Seen(
        load.incarnation,
        load.steps_total,
        load.preemptions_total,
        load.output_tokens_total,
        load.prompt_tokens_total,
        load.requests_ended_total,
        now_unix_s,
    )


def _update(seen: _Seen, load: InstanceLoad, now_unix_s: float) -> None:
    seen.preemptions.add(max(0, load.preemptions_total - seen.preemptions_total), now_unix_s)
    if load.steps_total != seen.steps_total or not load.running:
        seen.last_step_unix_s = now_unix_s
    seen.steps_total = load.steps_total
    seen.preemptions_total = load.preemptions_total
    seen.output_tokens_total = load.output_tokens_total
    seen.prompt_tokens_total = load.prompt_tokens_total
    seen.requests_ended_total = load.requests_ended_total
