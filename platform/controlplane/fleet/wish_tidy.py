"""Removes wishes that are fulfilled or meant for nobody any more. The worker does it by itself.

A restart is fulfilled when its instance serves with a younger engine; that it has, stands in the
audit. A wish for an instance that its pool has no place for any more is kept for a while, since a
pool that was made smaller by mistake is made larger again. Wishes for nodes stay: a machine that is
switched off for maintenance is to be drained still when it comes back.
"""

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from controlplane.fleet import fleet_now as fleet
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.models import WantedInstance
from controlplane.fleet.publishing import pools_publish_soon, wish_of
from controlplane.fleet.wish_rows import instance_number, is_renewing
from controlplane.fleet.wish_services import FIELDS
from controlplane.tenants.access import Access
from controlplane.tenants.changes import row_change, row_remove
from engine_pool.policy.wishes import WantedState
from engine_pool.types import InstanceState

THE_POOL: Final = Access("pool")
"""Who the audit says it was."""
GONE_FOR: Final = timedelta(hours=1)
RUNS_AGAIN: Final = (InstanceState.SERVING, InstanceState.CORDONED)


def wishes_tidy(*, now: datetime) -> int:
    """Returns how many rows were removed or changed. Does nothing while the store is away."""
    rows = list(WantedInstance.objects.select_related("pool"))
    if not rows:
        # The usual case: nobody has to ask the store.
        return 0
    known = fleet.fleet_now()
    if not known.is_known:
        return 0
    tidied = sum(_is_tidied(row, known, now) for row in rows)
    if tidied:
        pools_publish_soon()
    return tidied


@transaction.atomic
def _is_tidied(row: WantedInstance, known: FleetNow, now: datetime) -> bool:
    current = WantedInstance.objects.select_for_update().filter(pk=row.pk).first()
    if current is None or current.version != row.version:
        return False
    if _is_renewed(row, known):
        return _renewed(row)
    if _is_gone(row, known, now):
        row_remove(
            row, access=THE_POOL, action="wish_forget", fields=FIELDS,
            reason=f"pool {row.pool} has no instance {row.instance} any more",
        )  # fmt: skip
        return True
    return False


def _renewed(row: WantedInstance) -> bool:
    why = f"{row.instance} serves with a new engine"
    if row.wanted == WantedState.SERVING:
        row_remove(row, access=THE_POOL, action="instance_renewed", fields=FIELDS, reason=why)
    else:
        changes = {"renew_before": None}
        row_change(row, changes, access=THE_POOL, action="instance_renewed", reason=why)
    return True


def _is_renewed(row: WantedInstance, known: FleetNow) -> bool:
    status = known.statuses.get(row.instance)
    if row.renew_before is None or status is None or status.state not in RUNS_AGAIN:
        return False
    return not is_renewing(wish_of(row), status)


def _is_gone(row: WantedInstance, known: FleetNow, now: datetime) -> bool:
    parts = instance_number(row.instance)
    has_place = parts is not None and parts[1] <= row.pool.instances
    since = max(row.updated_at, row.pool.updated_at)
    return not has_place and row.instance not in known.statuses and now - since > GONE_FOR
