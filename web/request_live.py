"""Requests that run or wait now: what the instances report, with whose they are.

Whose request has no record in the store is shown to the platform's people only: this fails closed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from controlplane.fleet.observer import Observer
from controlplane.fleet.watch import all_watches, fleet_watch
from controlplane.gateway.live_requests import Facts, facts_of, may_see, public_id
from controlplane.tenants.access import Access
from engine_pool.errors import StoreUnavailable
from engine_pool.types import RequestLoad

RUNNING: Final = "running"
WAITING: Final = "waiting"


class LiveRequest(NamedTuple):
    """One engine request as its instance reports it."""

    engine_id: str
    request_id: str
    """As clients know it; several choices share it."""
    instance: str
    state: str
    priority_class: str
    kv_tokens: int
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    moves_to: str
    """Where it is on its way to; empty: nowhere."""
    migration_id: str
    at_unix_s: float
    """Of the report."""
    facts: Facts | None


def live_requests(access: Access, only: str = "") -> list[LiveRequest]:
    """Returns what the person may see, oldest first; of one request when `only` names it.

    To the platform's people the pool that they look at, to others what is theirs in any pool.
    Raises: StoreUnavailable when it cannot be told whose they are; for the platform's people they
    come without that.
    """
    found: list[LiveRequest] = []
    for observer in _observers(access):
        found += _reported(observer, only)
    try:
        facts = facts_of({r.request_id for r in found})
    except StoreUnavailable:
        if not access.sees_all:
            raise
        facts = {}
    told = [r._replace(facts=facts.get(r.request_id)) for r in found]
    return sorted((r for r in told if may_see(access, r.facts)), key=_age)


def _observers(access: Access) -> list[Observer]:
    chosen = fleet_watch()
    watches = [chosen] if access.sees_all else all_watches() or [chosen]
    return [watch.observer for watch in watches]


def _reported(observer: Observer, only: str) -> Iterable[LiveRequest]:
    picture = observer.look()
    going = {
        move.request_id: (move.destination, migration_id)
        for migration_id, move in picture.moves.items()
        if move.took_s is None
    }
    for name in picture.rows:
        load = observer.load(name)
        if load is None:
            continue
        for state, listed in ((RUNNING, load.running), (WAITING, load.waiting)):
            for r in listed:
                if not only or public_id(r.request_id) == only or r.request_id == only:
                    yield _row(name, state, r, going.get(r.request_id, ("", "")), load.at_unix_s)


def _row(
    instance: str, state: str, load: RequestLoad, going: tuple[str, str], at_unix_s: float
) -> LiveRequest:
    return LiveRequest(
        engine_id=load.request_id,
        request_id=public_id(load.request_id),
        instance=instance,
        state=state,
        priority_class=load.priority_class.value,
        kv_tokens=load.kv_tokens,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        preemptions=load.preemptions,
        moves_to=going[0],
        migration_id=going[1],
        at_unix_s=at_unix_s,
        facts=None,
    )


def _age(request: LiveRequest) -> tuple[float, str]:
    created = request.facts.created_unix_s if request.facts else float("inf")
    return created, request.engine_id
