"""Short ways to make what the policy decides on, and strategies that make it at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from engine_pool.policy.dispatch import RequestDemand
from engine_pool.policy.settings import (
    DispatchRule,
    HeadroomRule,
    Kept,
    QueueRule,
)
from engine_pool.policy.standing import Standing, add_queued
from engine_pool.types import InstanceName, PriorityClass, RequestId

HIGH, NORMAL, LOW = PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW
BLOCK_TOKENS = 16
CAPACITY_TOKENS = 16_000
"""1 % of it, the watermark, is 160."""

Tokens = Mapping[PriorityClass, Sequence[int]]
"""KV tokens of each request, by class."""


def standing(
    name: str = "i-01",
    running: Tokens | None = None,
    queued: Tokens | None = None,
    *,
    capacity: int = CAPACITY_TOKENS,
    used: int | None = None,
    max_running: int = 256,
    is_open: bool = True,
    is_draining: bool = False,
) -> Standing:
    """Makes an instance of its requests' sizes; a draining one is not open."""
    s = Standing(
        InstanceName(name),
        capacity,
        BLOCK_TOKENS,
        max_running,
        is_open=is_open and not is_draining,
        is_draining=is_draining,
    )
    for priority_class, sizes in (running or {}).items():
        s.running[priority_class.rank] += len(sizes)
        s.running_tokens[priority_class.rank] += sum(sizes)
    s.used_tokens = sum(s.running_tokens) if used is None else used
    for priority_class, sizes in (queued or {}).items():
        for tokens in sizes:
            add_queued(s, priority_class.rank, tokens)
    return s


def demand(
    tokens: int = 100,
    priority_class: PriorityClass = NORMAL,
    name: str = "new",
    cached: Mapping[str, int] | None = None,
) -> RequestDemand:
    where = {InstanceName(i): tokens for i, tokens in (cached or {}).items()}
    return RequestDemand(RequestId(name), tokens, priority_class, where)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may move. Implements selection.Movable."""

    name: str
    kv_tokens: int
    rank: int = NORMAL.rank
    can_move: bool = True

    @property
    def need_tokens(self) -> int:
        return self.kv_tokens + BLOCK_TOKENS


# A handful of sizes, so that ties, full and overfull instances are common; and few draws, so that
# a property sees many pools.
_SIZES = st.sampled_from(
    [(), (), (16,), (160,), (160, 160), (320, 640, 16), (1920,), (1040, 48), (16,) * 6]
)
_BY_CLASS = st.just({}) | st.fixed_dictionaries(dict.fromkeys(PriorityClass, _SIZES))


@st.composite
def standings(draw: st.DrawFn, name: str = "i-01") -> Standing:
    """Instances that may be idle, full, overfull, queueing, cordoned or draining."""
    is_draining = draw(st.sampled_from([False, False, False, True]))
    return standing(
        name,
        draw(_BY_CLASS),
        draw(_BY_CLASS),
        capacity=draw(st.sampled_from([800, 1600, 1600, 4000, 16_000])),
        max_running=draw(st.sampled_from([2, 6, 256])),
        is_open=draw(st.sampled_from([True, True, True, False])),
        is_draining=is_draining,
    )


@st.composite
def pools(draw: st.DrawFn, min_size: int = 0, max_size: int = 8) -> list[Standing]:
    count = draw(st.integers(min_size, max_size))
    return [draw(standings(f"i-{n:02d}")) for n in range(count)]


def headrooms() -> st.SearchStrategy[HeadroomRule]:
    """No class, one class or two with headroom, up to a load or of a size of its own."""
    return st.sampled_from(
        [
            HeadroomRule({}),
            HeadroomRule({HIGH: 600}),
            HeadroomRule({HIGH: 400, NORMAL: 2000}),
            HeadroomRule({HIGH: 400}, {HIGH: Kept(share=0.4), NORMAL: Kept(tokens=300)}),
        ]
    )


def dispatch_rules() -> st.SearchStrategy[DispatchRule]:
    return st.builds(
        DispatchRule,
        queue=st.sampled_from(QueueRule),
        watermark=st.sampled_from([0.0, 0.01, 0.1]),
        headroom=headrooms(),
        packs_classes=st.booleans(),
        is_elastic=st.booleans(),
        lent_share=st.sampled_from((0.0, 0.5, 1.0)),
        prefix_min_tokens=st.sampled_from([16, 64]),
        prefix_min_share=st.sampled_from([0.0, 0.5]),
        prefix_floor_steps=st.sampled_from([0.0, 160.0]),
    )


@st.composite
def demands(draw: st.DrawFn) -> RequestDemand:
    names = st.integers(0, 9).map(lambda n: InstanceName(f"i-{n:02d}"))
    cached = draw(st.just({}) | st.dictionaries(names, st.integers(0, 2000), max_size=4))
    return RequestDemand(
        RequestId(f"r{draw(st.integers(0, 10**6))}"),
        draw(st.integers(1, 4000)),
        draw(st.sampled_from(PriorityClass)),
        cached,
    )
