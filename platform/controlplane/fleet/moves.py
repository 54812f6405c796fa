"""Moves that an operator asks for, and how ended moves come into the database.

Permission is the door's. What a person asks for leaves an audit row, also when it is refused; the
move itself is the engines' (engine_pool/moves.py), and goes on whether or not the database answers.
"""

import logging
import math
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from asgiref.sync import async_to_sync
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import DatabaseError

from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.fleet.move_rows import row_of
from engine_pool.client import PoolClient, pool_client, served_clients
from engine_pool.errors import InstanceLost, MoveRefused, PoolError
from engine_pool.live_view import LiveView
from engine_pool.moves import MovePlan, Moves
from migration.report import MoveReport

logger = logging.getLogger(__name__)

MIGRATE: Final = "migrate_request"
CANCEL: Final = "cancel_move"
_CHILDREN_NAMED: Final = 8
"""Engine requests that an error message names before it says how many more there are."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one call of `migration_request` wants."""

    who: str
    request_id: str
    destination: str | None
    reason: str
    migration_id: str


def migration_request(
    *,
    user: AbstractBaseUser | AnonymousUser,
    request_id: str,
    destination: str | None,
    reason: str,
) -> MoveReport:
    """Begins a move to an instance, or to the freest one (None), and returns its first report.

    `request_id`: as load reports show it, or a public id that names exactly one of those.
    Raises: RequestNotRunning; MoveRefused (`ambiguous_request` when the id names several);
    InstanceLost when the source does not answer: it may have begun all the same, and is then told
    of under the audit row's migration id.
    """
    wish = _Wish(
        user.get_username(), request_id, destination or None, reason.strip(), uuid.uuid4().hex[:12]
    )
    try:
        client = _client_with(request_id)
        move = async_to_sync(_begin)(client.view, client.moves, wish)
    except PoolError as error:
        _write_audit(_refused(error, _audit_of(wish)))
        raise
    audit = _audit_of(wish)
    audit.request_id, audit.reason = move.request_id, move.reason
    audit.before, audit.after = {"instance": move.source}, {"instance": move.destination}
    _write_audit(audit)
    _write_asked(move, client.config.pool)
    return move


def migration_plan(*, request_id: str) -> MovePlan:
    """Returns where a request could move to, as of the last reports.

    Raises: RequestNotRunning; MoveRefused (`ambiguous_request`).
    """
    client = _client_with(request_id)
    return async_to_sync(_plan)(client.view, client.moves, request_id)


def migration_cancel(
    *, user: AbstractBaseUser | AnonymousUser, migration_id: str, reason: str = ""
) -> None:
    """Ends a move that goes on; its request stays where it is.

    Raises: MoveRefused when none of this id goes on; InstanceLost.
    """
    client = _client_moving(migration_id)
    move = client.view.moves.get(migration_id)
    audit = AuditEntry(
        who=user.get_username(),
        action=CANCEL,
        object=migration_id,
        reason=reason.strip(),
        result=AuditResult.DONE,
        request_id=move.request_id if move else "",
        migration_id=migration_id,
        before={"state": move.state.value} if move else None,
    )
    try:
        async_to_sync(client.moves.cancel)(migration_id)
    except PoolError as error:
        _write_audit(_refused(error, audit))
        raise
    _write_audit(audit)


def engine_requests(request_id: str, shown: Iterable[str]) -> list[str]:
    """Returns the engine requests that an id means: itself, or a public id's children.

    A choice of several is `0_<id>`, a prompt of several `<id>-0` (vLLM's names).
    """
    ids = set(shown)
    if request_id in ids:
        return [request_id]
    child = re.compile(rf"(\d+_)?{re.escape(request_id)}(-\d+)?")
    return sorted(i for i in ids if child.fullmatch(i))


def reason_text(wish_reason: str, who: str, plan: MovePlan, destination: str | None) -> str:
    """Returns why a move happens, with the numbers that the person saw."""
    place = next((d for d in plan.destinations if d.instance == destination), plan.freest)
    told: list[tuple[str, float | None]] = [(plan.source.instance, plan.source_freeness_steps)]
    if place is not None:
        told.append((place.instance, place.freeness_now_steps))
    said = f"operator {who}: {wish_reason}" if wish_reason else f"operator {who}"
    if all(steps is not None and math.isfinite(steps) for _, steps in told):
        return f"{said}; {', '.join(f'{n} {_number(s or 0)}' for n, s in told)} decode steps"
    return f"{said}; {', '.join(f'{n} {_steps(s)}' for n, s in told)}"


async def _begin(live: LiveView, moves: Moves, wish: _Wish) -> MoveReport:
    # In the event loop, so that the plan and the move see the same reports.
    plan = await _plan(live, moves, wish.request_id)
    return await moves.migrate(
        plan.request.request_id,
        destination=wish.destination,
        asked_by=f"operator {wish.who}",
        reason=reason_text(wish.reason, wish.who, plan, wish.destination),
        migration_id=wish.migration_id,
    )


async def _plan(live: LiveView, moves: Moves, request_id: str) -> MovePlan:
    found = engine_requests(request_id, _shown(live))
    if len(found) > 1:
        names = ", ".join(found[:_CHILDREN_NAMED])
        more = len(found) - _CHILDREN_NAMED
        also = f" and {more} more" if more > 0 else ""
        raise MoveRefused(
            f"{request_id} is {len(found)} requests: {names}{also}. Name one of them.",
            "ambiguous_request",
        )
    return moves.plan(found[0] if found else request_id)


def _client_with(request_id: str) -> PoolClient:
    """Returns the client of the pool that has the request; of the first one when none has."""
    clients = served_clients() or [pool_client()]
    for client in clients:
        if engine_requests(request_id, _shown(client.view)):
            return client
    return clients[0]


def _client_moving(migration_id: str) -> PoolClient:
    """Returns the client of the pool in which a move goes on; of the first one when none knows."""
    clients = served_clients() or [pool_client()]
    return next((c for c in clients if migration_id in c.view.moves), clients[0])


def _shown(live: LiveView) -> list[str]:
    loads = list(live.loads.values())
    return [r.request_id for load in loads for r in (*load.running, *load.waiting)]


def _steps(freeness: float | None) -> str:
    if freeness is None:
        return "without a report"
    if not math.isfinite(freeness):
        return "idle" if freeness > 0 else "leaving"
    return f"{_number(freeness)} decode steps"


def _number(steps: float) -> str:
    return f"{steps:.3g}" if abs(steps) < 100 else f"{steps:.0f}"


def _audit_of(wish: _Wish) -> AuditEntry:
    return AuditEntry(
        who=wish.who,
        action=MIGRATE,
        object=wish.request_id,
        reason=wish.reason,
        result=AuditResult.DONE,
        request_id=wish.request_id,
        migration_id=wish.migration_id,
        after={"wanted": wish.destination or "the freest"},
    )


def _refused(error: PoolError, audit: AuditEntry) -> AuditEntry:
    is_lost = isinstance(error, InstanceLost)
    audit.result = AuditResult.FAILED if is_lost else AuditResult.REFUSED
    audit.detail = str(error)
    if not is_lost and audit.action == MIGRATE:
        audit.migration_id = ""
    return audit


def _write_audit(audit: AuditEntry) -> None:
    audit.object, audit.request_id = audit.object[:200], audit.request_id[:128]
    try:
        audit.save()
    except DatabaseError:
        # What it tells of has happened already; the log is the place that is left.
        logger.exception("this audit row could not be written: %s, %s", audit, audit.detail)


def _write_asked(move: MoveReport, pool: str) -> None:
    try:
        # Ignored when it has ended meanwhile and the worker was faster.
        row = row_of(move, pool)
        type(row).objects.bulk_create([row], ignore_conflicts=True)
    except DatabaseError:
        logger.exception("the move %s is not in the database yet", move.migration_id)
