"""Where a new request goes: to the freest instance, as of the last reports and what was sent since.

`F = (free - watermark - queued) / (running + queued)` in KV tokens a request: the decode steps that
everybody there could still take with everything queued let in. Requests that were sent and that no
report shows yet (the in-flight ledger) count as queued; without them a stale report makes a herd.

Classes (Llumnix, OSDI 2024, section 4.4): lower classes see the headroom of higher ones as taken,
so they keep away from instances that serve those; where nobody else has room, they may use a part
of it. A class with headroom of its own is packed on instances that serve it already, up to its
target load, judged by F without headroom. What waits in lower classes counts against a request,
too: it goes ahead of them in the queue, but not of those whose prompts are computed by the time it
comes. Counted without them, a burst of a high class went where normal ones had just been sent.

An instance that has the beginning of a prompt in its prefix cache needs less for it. If that is
most of the prompt, it is preferred as long as it stays free enough.

Does not decide who may send what, when a request is sent, nor where it moves later.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_pool.policy.settings import DispatchRule, QueueRule
from engine_pool.policy.standing import CLASSES, Standing
from engine_pool.types import InstanceName, PriorityClass, RequestId

IN_HEADROOM = "in the headroom of a higher class, since the freest other has no room; "


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """What dispatch knows of a request."""

    request_id: RequestId
    demand_tokens: int
    """KV tokens that its prefill needs."""
    priority_class: PriorityClass = PriorityClass.NORMAL
    cached_tokens: Mapping[InstanceName, int] = field(default_factory=dict)
    """Of its prompt, by instance: those that its prefix cache is known to hold."""


@dataclass(frozen=True, slots=True)
class Choice:
    instance: InstanceName
    reason: str
    """Why this one, in words with numbers."""
    freeness_steps: float
    """F of the instance before this request; plus infinity when nothing runs or waits there."""


@dataclass(frozen=True, slots=True)
class Refusal:
    why: str
    is_permanent: bool = False
    """Whether the same request could never be placed on the instances that are there."""


class Score(NamedTuple):
    """An instance in the eyes of a class. Compared by its key."""

    order_steps: float
    """F; for a shortage the tokens that are short, undivided: dividing them by the batch would
    make a long queue look freer than a short one."""
    left_tokens: int
    """KV tokens left once everything that counts is in; negative when not all fits."""
    requests: int
    """Running and queued ones among which they are shared."""

    @property
    def freeness_steps(self) -> float:
        return self.left_tokens / self.requests if self.requests else math.inf

    @property
    def key(self) -> tuple[float, int]:
        return self.order_steps, self.left_tokens


def holds_tokens(s: Standing, rule: DispatchRule) -> int:
    """Returns how many KV tokens one request can have at most."""
    return int(s.capacity_tokens * (1 - rule.watermark))


def score(s: Standing, rank: int, rule: DispatchRule, *, lends: bool = False) -> Score:
    """Judges an instance for a request of the class of this rank."""
    queued = sum(s.queued)
    if rule.queue is QueueRule.ALL:
        queued_tokens = sum(s.queued_tokens)
    else:
        queued_tokens = s.head_tokens if queued else 0
    left = holds_tokens(s, rule) - s.used_tokens - queued_tokens
    if rule.packs_classes:
        headroom = headroom_above(s, rank, rule)
        left -= int(headroom * (1 - rule.lent_share)) if lends else headroom
    requests = sum(s.running) + queued
    if left < 0:
        return Score(float(left), left, requests)
    return Score(left / requests if requests else math.inf, left, requests)


def headroom_above(s: Standing, rank: int, rule: DispatchRule) -> int:
    """Returns what the higher classes that an instance serves want to keep free of this one."""
    headroom = 0
    for higher in range(rank):
        if s.hosts(higher):
            headroom += rule.headroom.headroom_tokens(CLASSES[higher], s.capacity_tokens)
    return headroom


def choose(
    standings: Sequence[Standing], request: RequestDemand, rule: DispatchRule
) -> Choice | Refusal:
    """Chooses among the instances that are open. The same for every order of `standings`.

    Ties are broken by a hash of the request, which is the same everywhere and spreads evenly.
    Looks at every instance; `ranking.Ranking` chooses the same without.
    """
    candidates = [s for s in standings if s.is_open]
    if not candidates:
        return Refusal("no instance is open")
    fit = [s for s in candidates if fits(s, request, rule)]
    if not fit:
        most = max(holds_tokens(s, rule) for s in candidates)
        return too_large(request, most)
    found = prefer_cached(fit, request, rule) or prefer_host(fit, request, rule)
    if found is not None:
        return found
    rank = request.priority_class.rank
    best, how = _freest(candidates, request, rank, rule), ""
    if rule.is_elastic and best[1].left_tokens < request.demand_tokens:
        raw = _freest(candidates, request, rank, rule, lends=True)
        if raw[1].left_tokens >= request.demand_tokens:
            best, how = raw, IN_HEADROOM
    return choice(best[0], best[1], len(candidates), how)


def _freest(
    candidates: Sequence[Standing],
    request: RequestDemand,
    rank: int,
    rule: DispatchRule,
    *,
    lends: bool = False,
) -> tuple[Standing, Score]:
    scored = [(s, score(s, rank, rule, lends=lends)) for s in candidates]
    best = max(found.key for s, found in scored if fits(s, request, rule))
    ties = sorted((p for p in scored if p[1].key == best), key=_name)
    turn = first_of(len(ties), request)
    return next(p for p in (*ties[turn:], *ties[:turn]) if fits(p[0], request, rule))


def _name(scored: tuple[Standing, Score]) -> str:
    return scored[0].instance


def fits(s: Standing, request: RequestDemand, rule: DispatchRule) -> bool:
    """Says whether an instance could hold a request if it were empty."""
    return request.demand_tokens <= holds_tokens(s, rule)


def first_of(ties: int, request: RequestDemand) -> int:
    """Returns where to begin among equals in the order of their names."""
    return zlib.crc32(request.request_id.encode()) % ties if ties > 1 else 0


def prefer_host(
    fit: Iterable[Standing], request: RequestDemand, rule: DispatchRule
) -> Choice | None:
    """Packs a class with headroom: the freest instance that serves it, has a place in its batch
    and stays within its target load; None when there is none, or the class has no headroom."""
    rank = request.priority_class.rank
    if not rule.packs_classes or not rule.headroom.has_headroom(request.priority_class):
        return None
    best: tuple[tuple[float, int, str], Standing, Score, int] | None = None
    for s in fit:
        load = packed_tokens(s, rank)
        target = rule.headroom.target_tokens(request.priority_class, s.capacity_tokens)
        if load is None or target is None or load + request.demand_tokens > target:
            continue
        found = score(s, rank, rule)
        key = (*found.key, s.instance)
        if best is None or key > best[0]:
            best = key, s, found, target
    if best is None:
        return None
    why = f"it serves {request.priority_class.value} requests and stays under {best[3]} tokens; "
    return choice(best[1], best[2], 0, why)


def packed_tokens(s: Standing, rank: int) -> int | None:
    """Returns the load that counts for packing; None of an instance that does not serve the class,
    or has no place in its batch."""
    if not s.hosts(rank) or s.batch + sum(s.queued) >= s.max_running:
        return None
    return s.used_tokens + sum(s.queued_tokens)


def prefer_cached(
    fit: Iterable[Standing], request: RequestDemand, rule: DispatchRule
) -> Choice | None:
    """Chooses the instance that holds most of the prompt already and stays free enough with it;
    None when there is none."""
    if not request.cached_tokens:
        return None
    rank = request.priority_class.rank
    least = max(rule.prefix_min_tokens, rule.prefix_min_share * request.demand_tokens)
    best: tuple[tuple[int, float, str], Standing, Score] | None = None
    for s in fit:
        cached = request.cached_tokens.get(s.instance, 0)
        if cached < least:
            continue
        found = score(s, rank, rule)
        left_with_it = found.left_tokens - max(0, request.demand_tokens - cached)
        steps_with_it = left_with_it / (found.requests + 1)
        is_full = s.batch + s.waiting >= s.max_running
        if steps_with_it < rule.prefix_floor_steps or is_full:
            continue
        key = (cached, steps_with_it, s.instance)
        if best is None or key > best[0]:
            best = key, s, found
    if best is None:
        return None
    return choice(best[1], best[2], 0, f"it holds {best[0][0]} tokens of the prompt; ")


def choice(s: Standing, found: Score, candidates: int, how: str) -> Choice:
    """Makes a choice with its reason. `candidates`: how many it is the freest of, 0 for one that
    was preferred for another reason, which `how` says."""
    if candidates > 1:
        among = f"{how}the freest of {candidates}"
    else:
        among = how.removesuffix("; ") or "the only one that serves"
    left = f"{s.instance}: {among}: {found.left_tokens} KV tokens left"
    if math.isinf(found.freeness_steps):
        return Choice(s.instance, f"{left}, idle", math.inf)
    steps = found.freeness_steps
    queued = found.requests - s.batch
    shared = f"for {s.batch} running and {queued} queued"
    return Choice(s.instance, f"{left} {shared}, {steps:.0f} decode steps", steps)


def too_large(request: RequestDemand, holds_most_tokens: int) -> Refusal:
    """Refuses a request that no instance could ever hold."""
    need = request.demand_tokens
    why = f"the prompt needs {need} KV tokens, the largest instance holds {holds_most_tokens}"
    return Refusal(why, is_permanent=True)


def next_in_turn(
    standings: Sequence[Standing], request: RequestDemand, turn: int, rule: DispatchRule
) -> Choice | Refusal:
    """Chooses in turn among the open instances, by name, whatever their load."""
    fit = [s for s in standings if s.is_open and fits(s, request, rule)]
    if not fit:
        return Refusal("no open instance can hold it")
    fit.sort(key=lambda s: s.instance)
    s = fit[turn % len(fit)]
    return Choice(s.instance, f"{s.instance}: next in turn", math.nan)
