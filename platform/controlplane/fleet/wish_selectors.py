"""What is wanted of instances and nodes, and how far each is from it: for pages, REST and command.

Whether a machine may be switched off is decided here once. An instance is safe to stop when what is
wanted says that everything leaves it, the pool process has proven it empty (no request, no block,
no transfer, its door closed) or its engine has ended, and whoever says so says it now.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controlplane.fleet import fleet_now as fleet
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.models import WantedInstance, WantedNode
from controlplane.fleet.picture import STALE_AFTER_S, natural, shown_state
from controlplane.fleet.wish_rows import (
    LEAVING,
    Wishes,
    instance_pool,
    is_renewing,
    wishes_now,
)
from controlplane.fleet.wish_terms import node_check
from engine_pool.policy.wishes import InstanceWish, Leftover, WantedState
from engine_pool.types import (
    DrainProgress,
    InstanceLoad,
    InstanceState,
    InstanceStatus,
    RequestLoad,
)
from migration.report import MoveReport, MoveState

POOL_SEEN_WITHIN_S: Final = 10.0
"""The pool process shows itself once a second; a web process looks for that every 2 s."""
SETTLED_AFTER_S: Final = 2.0
"""A wish is with the pool process within a second; what it has said before may be of an earlier
one."""
ENDS_WITHIN_S: Final = 2.0
"""A report that an engine sent before its end has come by then."""
SMALLER: Final = "the pool"
POOLS_OWN: Final = (SMALLER, "SIGTERM", "Ray")
"""Who wants something without a row: the pool's size, an engine's process, a node (named so by the
pool process)."""
LEFT_SHOWN: Final = 100
"""Requests that are listed one by one; all are counted."""
LEAVES: Final = (InstanceState.DRAINING, InstanceState.DRAINED, InstanceState.STOPPING)
EMPTY_STATES: Final = (InstanceState.DRAINED, InstanceState.STOPPED)


@dataclass(frozen=True, slots=True)
class LeftRequest:
    """A request that is still on an instance that drains."""

    request_id: str
    priority_class: str
    is_queued: bool
    kv_tokens: int
    output_tokens: int
    moves_to: str
    """Where it is on its way to; empty: nowhere now."""
    migration_id: str
    why: str
    """What it waits for, or why it cannot move."""


@dataclass(frozen=True, slots=True)
class InstanceDrain:
    """One instance: what is wanted of it, and how far it is."""

    instance: str
    pool: str
    node: str
    state: str
    """As everywhere on the pages (picture.py); empty: nobody reports it."""
    cause: str
    since_unix_s: float | None
    wish: InstanceWish
    """What holds, its node's wish included."""
    own: WantedInstance | None
    of_node: WantedNode | None
    is_renewing: bool
    """A new engine is to take the place of the present one."""
    is_outdated: bool
    progress: DrainProgress | None
    left: tuple[LeftRequest, ...]
    """The first ones: those on their way, then those that run, then the queue."""
    left_total: int | None
    """None: there is no report of it."""
    report_age_s: float | None
    last_move_unix_s: float | None
    rate_per_s: float | None
    """Requests that left or ended a second, since the drain began; None: none has yet."""
    is_safe: bool
    why_not_safe: str
    """Empty when it is."""

    @property
    def is_leaving(self) -> bool:
        """Everything is to leave it, for good or for a new engine."""
        return self.wish.wanted in LEAVING or self.is_renewing

    @property
    def verified_unix_s(self) -> float | None:
        return self.progress.verified_unix_s if self.progress is not None else None


@dataclass(frozen=True, slots=True)
class NodeDrain:
    """One node: the instances that are on it now."""

    node: str
    row: WantedNode | None
    instances: tuple[InstanceDrain, ...]
    is_safe: bool
    why_not_safe: str

    @property
    def left(self) -> int | None:
        """Requests on all of its instances; None: nobody knows."""
        known = [i.left_total for i in self.instances]
        return None if None in known else sum(n for n in known if n is not None)

    @property
    def estimate_s(self) -> float | None:
        """Until the last one is empty; None: not known of all that are not."""
        open_ones = [i.progress for i in self.instances if not i.is_safe]
        found = [p.estimate_s for p in open_ones if p is not None and p.estimate_s is not None]
        return max(found) if found and len(found) == len(open_ones) else None


def instance_drain_get(name: str) -> InstanceDrain:
    """Raises: NotVisible for an instance that neither is nor should be."""
    now = fleet.fleet_now()
    pool = instance_pool(name, now.statuses.values())
    return drain_of(name, pool.name, now, wishes_now())


def node_drain_get(node: str) -> NodeDrain:
    """Raises: NotVisible."""
    now = fleet.fleet_now()
    node_check(node, now)
    return node_of(node, now, wishes_now())


def node_drain_now(node: str) -> NodeDrain:
    """The same for a node of which something has just been changed: one that has no instances is
    forgotten with its wish, and is empty."""
    return node_of(node, fleet.fleet_now(), wishes_now())


def nodes_list() -> list[NodeDrain]:
    """Returns all nodes that have an instance, or of which something is wanted, by name."""
    now, wishes = fleet.fleet_now(), wishes_now()
    names = sorted({*now.nodes, *wishes.nodes}, key=natural)
    return [node_of(name, now, wishes) for name in names]


def node_of(node: str, now: FleetNow, wishes: Wishes) -> NodeDrain:
    """Describes a node. Safe: all of its instances are, and somebody wants it to be."""
    here = sorted(now.of_node(node), key=lambda s: natural(s.instance))
    instances = tuple(drain_of(s.instance, s.pool, now, wishes) for s in here)
    row = wishes.of_node(node)
    open_ones = [i for i in instances if not i.is_safe]
    why = ""
    if row is None or row.wanted not in LEAVING:
        why = "nobody wants it to be drained"
    elif not now.is_known:
        why = "the store does not answer"
    elif open_ones:
        first, more = open_ones[0], len(open_ones) - 1
        why = f"{first.instance}: {first.why_not_safe}" + (f", and {more} more" if more else "")
    return NodeDrain(node, row, instances, is_safe=not why, why_not_safe=why)


def drain_of(name: str, pool: str, now: FleetNow, wishes: Wishes) -> InstanceDrain:
    """Describes an instance. Pure but for the rows that `wishes` has read."""
    status, load = now.statuses.get(name), now.loads.get(name)
    node = status.node if status is not None else ""
    wish = wishes.joined(name, node)
    is_pools_own = _is_pools_own(status, wish)
    progress = status.drain if status is not None else None
    if is_pools_own and status is not None:
        wish = _pools_own(status)
    mine = [move for move in now.moves if move.source == name]
    found = _left_of(load, mine, wish, progress, status)
    why = _why_not_safe(status, load, wish, now, pool)
    return InstanceDrain(
        instance=name,
        pool=pool,
        node=node,
        state=shown_state(status) if status is not None else "",
        cause=status.cause if status is not None else "",
        since_unix_s=status.since_unix_s if status is not None else None,
        wish=wish,
        own=wishes.own(name),
        of_node=wishes.of_node(node),
        is_renewing=(is_pools_own and wish.by != SMALLER) or is_renewing(wish, status),
        is_outdated=status is not None and status.is_outdated,
        progress=progress,
        left=tuple(found[:LEFT_SHOWN]),
        left_total=None if load is None else len(found),
        report_age_s=None if load is None else max(0.0, now.at_unix_s - load.at_unix_s),
        last_move_unix_s=_last_move(mine),
        rate_per_s=_rate(progress, now.at_unix_s),
        is_safe=not why,
        why_not_safe=why,
    )


def _is_pools_own(status: InstanceStatus | None, wish: InstanceWish) -> bool:
    """Says whether an instance leaves without anybody's row: because the pool has become smaller,
    or so that a successor takes its place: it has other engine settings than the pool, or its
    process or its node was told to end."""
    if status is None or wish.by or not status.wanted_by or status.state not in LEAVES:
        return False
    return status.wanted not in LEAVING or status.wanted_by in POOLS_OWN


def _pools_own(status: InstanceStatus) -> InstanceWish:
    """Returns what the pool wants of an instance; one that is renewed serves again."""
    ends = status.wanted_by == SMALLER
    drain = status.drain
    return InstanceWish(
        wanted=WantedState(status.wanted) if ends else WantedState.SERVING,
        by=status.wanted_by,
        reason=status.wanted_reason,
        deadline_unix_s=drain.deadline_unix_s if drain is not None else None,
        leftover=Leftover(drain.leftover) if drain is not None else Leftover.WAIT,
    )


def _why_not_safe(
    status: InstanceStatus | None,
    load: InstanceLoad | None,
    wish: InstanceWish,
    now: FleetNow,
    pool: str,
) -> str:
    """Returns what speaks against switching its machine off; empty: nothing."""
    if wish.wanted not in LEAVING:
        return "nobody wants it to be drained"
    if not now.is_known:
        return "the store does not answer, so nothing is known now"
    if status is None:
        return "nobody reports it"
    seen = now.pool_seen_unix_s.get(pool)
    if seen is None or now.at_unix_s - seen > POOL_SEEN_WITHIN_S:
        return "the pool process does not answer, so nobody checks it now"
    if status.state not in EMPTY_STATES:
        return _words_of(status, load)
    if status.wanted not in LEAVING or seen < wish.since_unix_s + SETTLED_AFTER_S:
        return "the pool process has not confirmed it yet"
    if status.state is InstanceState.STOPPED:
        # Its engine has ended, of itself perhaps: then nothing had to be verified.
        is_alive = load is not None and load.at_unix_s > status.since_unix_s + ENDS_WITHIN_S
        return "something still reports as its engine" if is_alive else ""
    if status.drain is None or status.drain.verified_unix_s is None:
        return f"{status.state.value}, but not proven to be empty"
    if status.state is InstanceState.DRAINED:
        if load is None or now.at_unix_s - load.at_unix_s > STALE_AFTER_S:
            return "its engine does not report, so it is not known to be empty now"
        if load.running or load.waiting:
            return f"{len(load.running) + len(load.waiting)} requests are there again"
    return ""


def _words_of(status: InstanceStatus, load: InstanceLoad | None) -> str:
    if status.state is InstanceState.DRAINING and status.drain is not None:
        # The report is younger than what the pool process has made of the one before.
        left = status.drain.left if load is None else len(load.running) + len(load.waiting)
        return f"{left} request{'s' if left != 1 else ''} left" if left else "being verified"
    return f"{status.state.value}: {status.cause}" if status.cause else status.state.value


def _left_of(
    load: InstanceLoad | None,
    moves: Iterable[MoveReport],
    wish: InstanceWish,
    progress: DrainProgress | None,
    status: InstanceStatus | None,
) -> list[LeftRequest]:
    if load is None:
        return []
    last: dict[str, MoveReport] = {}
    for move in moves:
        before = last.get(move.request_id)
        if before is None or before.started_unix_s <= move.started_unix_s:
            last[move.request_id] = move
    leaves = status is not None and status.state is InstanceState.DRAINING
    found = [
        *(_left(r, False, last.get(r.request_id), wish, progress, leaves) for r in load.running),
        *(_left(r, True, last.get(r.request_id), wish, progress, leaves) for r in load.waiting),
    ]
    return sorted(found, key=lambda r: (not r.moves_to, r.is_queued, natural(r.request_id)))


def _left(
    request: RequestLoad,
    is_queued: bool,
    move: MoveReport | None,
    wish: InstanceWish,
    progress: DrainProgress | None,
    leaves: bool,
) -> LeftRequest:
    goes_on = move is not None and not move.state.is_end
    return LeftRequest(
        request_id=request.request_id,
        priority_class=request.priority_class.value,
        is_queued=is_queued,
        kv_tokens=request.kv_tokens,
        output_tokens=request.output_tokens,
        moves_to=move.destination if move is not None and goes_on else "",
        migration_id=move.migration_id if move is not None else "",
        why=_why_here(move, is_queued, wish, progress, leaves),
    )


def _why_here(
    move: MoveReport | None,
    is_queued: bool,
    wish: InstanceWish,
    progress: DrainProgress | None,
    leaves: bool,
) -> str:
    """Says why a request is still there, the most particular reason first."""
    if move is not None and not move.state.is_end:
        return f"moving to {move.destination}"
    if not leaves:
        return "waits in the queue" if is_queued else "runs here"
    if move is not None and move.state is MoveState.ABORTED:
        told = move.abort_reason or move.abort_code.replace("_", " ")
        return f"did not move to {move.destination}: {told.rstrip('.')}; it is tried again"
    if progress is not None and progress.obstacle:
        return f"cannot move now: {progress.obstacle}"
    later = {
        Leftover.WAIT: "",
        Leftover.REPLAY: ", or is replayed elsewhere at the deadline",
        Leftover.END: ", or ends at the deadline",
    }[wish.leftover]
    first = (
        "waits in the queue, moves without a copy" if is_queued else "waits for its turn to move"
    )
    return first + (later if wish.deadline_unix_s is not None else "")


def _last_move(moves: Iterable[MoveReport]) -> float | None:
    return max((m.at_unix_s for m in moves if m.state is MoveState.COMMITTED), default=None)


def _rate(progress: DrainProgress | None, now_unix_s: float) -> float | None:
    if progress is None or not (gone := progress.moved + progress.ended):
        return None
    until = progress.verified_unix_s or now_unix_s
    return gone / max(1.0, until - progress.begun_unix_s)
