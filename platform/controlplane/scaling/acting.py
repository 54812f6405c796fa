"""Brings a pool's rows to what was decided, in the caller's transaction.

A drained instance is a row of what is wanted (stopped, by "scaling"); taking the row away wakes it.
Rows of people are never touched. All of this is a level: whoever follows the rows may be away
meanwhile, and nothing is done twice.
"""

from collections.abc import Mapping, MutableMapping
from datetime import datetime
from typing import Final

from controlplane.audit.services import audit_write
from controlplane.fleet.models import Pool, WantedInstance
from controlplane.scaling.facts import BY, is_own, slots_of
from controlplane.tenants.access import Access
from engine_pool.policy.scaling_facts import ScalingDecision
from engine_pool.policy.wishes import Leftover, WantedState
from engine_pool.types import InstanceName, InstanceState, InstanceStatus

REASON_MAX: Final = 500
"""Characters of a wish's reason."""
ACCESS: Final = Access(BY)

Rows = MutableMapping[InstanceName, WantedInstance]


def act(pool: Pool, rows: Rows, decision: ScalingDecision, now: datetime) -> InstanceName | None:
    """Does what was decided; returns the instance that it is about, the first one of several."""
    assert decision.is_change, "asked by the caller"
    before = wanted_count(pool, rows)
    name = decision.drain or decision.undrain or decision.wake
    if decision.drain is not None:
        action = "scaling_shrink"
        _stop(pool, rows, decision.drain, decision.reason, now)
    elif name is not None:
        action = "scaling_undrain" if decision.undrain is not None else "scaling_grow"
        _wake(rows, name, now)
    else:
        action = "scaling_grow"
        pool.instances += decision.add
        _save(pool, now)
        name = slots_of(pool)[-decision.add]
    audit_write(
        access=ACCESS,
        action=action,
        object=f"{pool.name}: {name}",
        reason=decision.reason,
        before={"instances": before},
        after={"instances": wanted_count(pool, rows)},
    )
    return name


def tidy(
    pool: Pool, rows: Rows, statuses: Mapping[InstanceName, InstanceStatus], now: datetime
) -> bool:
    """Makes the pool shorter by its last instances that the loop has stopped, once they have ended;
    says whether it did. What runs does not change by it.

    One slot stays, and as many as the pool's own least.
    """
    slots = slots_of(pool)
    stale = [name for name, row in rows.items() if is_own(row) and name not in slots]
    for name in stale:
        rows.pop(name).delete()
    before = pool.instances
    while slots and len(slots) > max(1, pool.min_instances):
        row, status = rows.get(slots[-1]), statuses.get(slots[-1])
        has_ended = status is None or status.state is InstanceState.STOPPED
        if row is None or not is_own(row) or not has_ended:
            break
        rows.pop(slots.pop()).delete()
    if len(slots) == before:
        return bool(stale)
    pool.instances = len(slots)
    _save(pool, now)
    audit_write(
        access=ACCESS,
        action="scaling_tidy",
        object=pool.name,
        reason="The last instances had been stopped by scaling.",
        before={"slots": before},
        after={"slots": pool.instances},
    )
    return True


def wanted_count(pool: Pool, rows: Mapping[InstanceName, WantedInstance]) -> int:
    """Returns how many of the pool's instances are wanted to serve, nodes' wishes left out."""
    serving = WantedState.SERVING
    return sum(name not in rows or rows[name].wanted == serving for name in slots_of(pool))


def _stop(pool: Pool, rows: Rows, name: InstanceName, reason: str, now: datetime) -> None:
    row = rows.get(name)
    if row is None:
        row = rows[name] = WantedInstance(pool=pool, instance=name, created_at=now)
    else:
        row.version += 1
    row.wanted = WantedState.STOPPED.value
    row.by, row.reason = BY, reason[:REASON_MAX]
    row.since = row.updated_at = now
    # What cannot move ends by itself: nothing is cut to save an instance.
    row.deadline, row.leftover = None, Leftover.WAIT.value
    row.save()


def _wake(rows: Rows, name: InstanceName, now: datetime) -> None:
    row = rows.pop(name, None)
    if row is None:
        return
    if row.renew_before is None:
        row.delete()
        return
    # A restart that somebody has asked for is still to be done.
    row.wanted, row.since, row.updated_at = WantedState.SERVING.value, now, now
    row.version += 1
    row.save()
    rows[name] = row


def _save(pool: Pool, now: datetime) -> None:
    pool.version += 1
    pool.updated_at = now
    pool.save(update_fields=["instances", "version", "updated_at"])
