"""What operators want of an instance or a node: cordon, drain, stop, restart, release.

A wish is a row, published within a second and followed by the pool process, whatever restarts
meanwhile. Nothing here waits for it: wish_selectors.py says how far it is.

All need the platform's operator, and raise NotVisible, NotAllowed, VersionConflict, the refusals of
wish_terms.py, and ValidationError naming the field.
"""

from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from controlplane.errors import VersionConflict
from controlplane.fleet import fleet_now as fleet
from controlplane.fleet.models import WantedInstance, WantedNode, Wish
from controlplane.fleet.publishing import pools_publish_soon, wish_of
from controlplane.fleet.wish_rows import LEAVING, instance_pool, is_renewing, wishes_now
from controlplane.fleet.wish_terms import (
    HeldByNode,
    NothingToRestart,
    Terms,
    check_known,
    check_others,
    check_terms,
    node_check,
)
from controlplane.tenants.access import Access, Role
from controlplane.tenants.changes import row_add, row_change, row_remove
from engine_pool.policy.wishes import WantedState

FIELDS: Final = ("wanted", "deadline", "leftover", "renew_before")
"""What the audit shows of a wish."""


def instance_cordon(*, access: Access, instance: str, terms: Terms) -> WantedInstance:
    """Lets an instance take nothing new; what it has goes on there."""
    terms = Terms(terms.reason, version=terms.version, is_forced=terms.is_forced)
    return _instance_set(access, instance, WantedState.CORDONED, terms, "instance_cordon")


def instance_drain(*, access: Access, instance: str, terms: Terms) -> WantedInstance:
    """Lets everything leave an instance; its engine stays, proven empty."""
    return _instance_set(access, instance, WantedState.DRAINED, terms, "instance_drain")


def instance_stop(*, access: Access, instance: str, terms: Terms) -> WantedInstance:
    """Drains an instance, then ends its engine."""
    return _instance_set(access, instance, WantedState.STOPPED, terms, "instance_stop")


def instance_restart(
    *, access: Access, instance: str, terms: Terms, word: str = "restart"
) -> WantedInstance:
    """Drains an instance, ends its engine and starts a new one.

    `word`: restart, or replace where somebody wants a fresh engine; the pool does the same.
    """
    assert word in ("restart", "replace"), "the audit knows no other"
    return _instance_set(access, instance, None, terms, f"instance_{word}")


def instance_release(*, access: Access, instance: str, terms: Terms) -> None:
    """Lets an instance serve again; nothing moves back by itself. Does nothing when nothing of its
    own is wanted. Raises: HeldByNode."""
    access.require(Role.OPERATOR)
    now = fleet.fleet_now()
    instance_pool(instance, now.statuses.values())
    row = WantedInstance.objects.filter(instance=instance).first()
    if row is not None:
        _remove(row, access, terms, "instance_release")
        return
    check_known(None, access, terms, instance)
    status = now.statuses.get(instance)
    held = wishes_now().of_node(status.node) if status is not None else None
    if held is not None:
        raise HeldByNode(
            f"{instance} is {held.wanted} with its node {held.node}, by {held.by}; release that."
        )


def node_cordon(*, access: Access, node: str, terms: Terms) -> WantedNode:
    """Lets all instances of a node take nothing new."""
    terms = Terms(terms.reason, version=terms.version, is_forced=terms.is_forced)
    return _node_set(access, node, WantedState.CORDONED, terms, "node_cordon")


def node_drain(*, access: Access, node: str, terms: Terms, is_stopped: bool = False) -> WantedNode:
    """Drains all instances of a node, those that are placed there later included.

    `is_stopped`: and ends their engines.
    """
    wanted = WantedState.STOPPED if is_stopped else WantedState.DRAINED
    return _node_set(access, node, wanted, terms, "node_stop" if is_stopped else "node_drain")


def node_release(*, access: Access, node: str, terms: Terms) -> None:
    """Lets the instances of a node serve again, but for those of which something is wanted by
    themselves."""
    access.require(Role.OPERATOR)
    row = WantedNode.objects.filter(node=node).first()
    if row is not None:
        _remove(row, access, terms, "node_release")
        return
    node_check(node, fleet.fleet_now())
    check_known(None, access, terms, node)


@transaction.atomic
def _instance_set(
    access: Access, instance: str, wanted: WantedState | None, terms: Terms, action: str
) -> WantedInstance:
    """`wanted` of None: what it is now, with a new engine."""
    access.require(Role.OPERATOR)
    now = fleet.fleet_now()
    pool = instance_pool(instance, now.statuses.values())
    row = WantedInstance.objects.filter(instance=instance).first()
    if wanted is None and row is not None and row.wanted in LEAVING:
        raise NothingToRestart(f"{instance} is to be {row.wanted}, by {row.by}; release it first.")
    check_terms(terms)
    version = check_known(row, access, terms, instance)
    check_others(now, {instance}, terms)
    is_pending = row is not None and is_renewing(wish_of(row), now.statuses.get(instance))
    changes = _changes(row, wanted, terms, access.who, is_pending=is_pending)
    if row is None:
        new = WantedInstance(pool=pool, instance=instance, **changes)
        row = row_add(new, access=access, action=action, fields=FIELDS, reason=terms.reason)
    else:
        row = row_change(
            row, changes, access=access, action=action, version=version, reason=terms.reason
        )
    transaction.on_commit(pools_publish_soon)
    return row


@transaction.atomic
def _node_set(
    access: Access, node: str, wanted: WantedState, terms: Terms, action: str
) -> WantedNode:
    access.require(Role.OPERATOR)
    now = fleet.fleet_now()
    node_check(node, now)
    row = WantedNode.objects.filter(node=node).first()
    check_terms(terms)
    version = check_known(row, access, terms, node)
    check_others(now, {status.instance for status in now.of_node(node)}, terms)
    changes = _changes(row, wanted, terms, access.who)
    if row is None:
        new = WantedNode(node=node, **changes)
        row = row_add(new, access=access, action=action, fields=FIELDS, reason=terms.reason)
    else:
        row = row_change(
            row, changes, access=access, action=action, version=version, reason=terms.reason
        )
    transaction.on_commit(pools_publish_soon)
    return row


@transaction.atomic
def _remove(row: WantedInstance | WantedNode, access: Access, terms: Terms, action: str) -> None:
    version = check_known(row, access, terms, str(row))
    if version is not None and row.version != version:
        raise VersionConflict(str(row), row.version)
    row_remove(row, access=access, action=action, fields=FIELDS, reason=terms.reason)
    transaction.on_commit(pools_publish_soon)


def _changes(
    row: Wish | None,
    wanted: WantedState | None,
    terms: Terms,
    who: str,
    *,
    is_pending: bool = False,
) -> dict[str, Any]:
    """Returns what the row is to say: what it says already where the same is wanted again, so that
    a second press is none. `is_pending`: a restart has been asked for and is not done yet."""
    now = timezone.now()
    wished = WantedState.SERVING if row is None else WantedState(row.wanted)
    # One that is to be empty, or ended, is not started anew meanwhile.
    renew_before = None if row is None or wanted in LEAVING else row.renew_before
    if wanted is None and not is_pending:
        renew_before = now
    is_same = row is not None and row.by == who and (wanted or wished) is wished
    is_same = is_same and (wanted is not None or is_pending)
    after = None if terms.deadline_s is None else timedelta(seconds=terms.deadline_s)
    deadline = None if after is None else now + after
    if row is not None and is_same and row.deadline and row.deadline - row.since == after:
        deadline = row.deadline
    return {
        "wanted": (wanted or wished).value,
        "by": who,
        "reason": terms.reason.strip(),
        "since": row.since if row is not None and is_same else now,
        "deadline": deadline,
        "leftover": terms.leftover.value,
        "renew_before": renew_before,
    }
