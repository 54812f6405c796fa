"""The rows of what is wanted of instances and nodes, and what follows from them for an instance.

An instance has its own wish and its node's; the stricter one holds (engine_pool/policy/wishes.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controlplane.errors import NotVisible
from controlplane.fleet.models import Pool, WantedInstance, WantedNode, Wish
from controlplane.fleet.publishing import keys_of, wish_of
from engine_pool.policy.wishes import InstanceWish, WantedState, joined
from engine_pool.types import InstanceStatus

LEAVING: Final = (WantedState.DRAINED, WantedState.STOPPED)
"""Everything leaves an instance of which this is wanted."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """All rows, as of one moment."""

    instances: dict[str, WantedInstance]
    nodes: dict[str, WantedNode]

    def own(self, instance: str) -> WantedInstance | None:
        return self.instances.get(instance)

    def of_node(self, node: str) -> WantedNode | None:
        return self.nodes.get(node) if node else None

    def joined(self, instance: str, node: str) -> InstanceWish:
        """Returns what holds for an instance."""
        rows = (self.own(instance), self.of_node(node))
        return joined(wish_of(row) for row in rows if row is not None)


def wishes_now() -> Wishes:
    """Reads all rows. Two queries."""
    return Wishes(
        {row.instance: row for row in WantedInstance.objects.select_related("pool")},
        {row.node: row for row in WantedNode.objects.all()},
    )


def is_renewing(wish: InstanceWish, status: InstanceStatus | None) -> bool:
    """Says whether an instance still has the engine that is to be replaced by a new one."""
    if wish.renew_before_unix_s is None:
        return False
    began = None if status is None else status.engine_started_unix_s
    return began is None or began < wish.renew_before_unix_s


def wanted_word(row: Wish) -> str:
    """Returns what is wanted, in one word."""
    if row.wanted == WantedState.SERVING and row.renew_before is not None:
        return "restarted"
    return row.wanted


def instance_number(name: str) -> tuple[str, int] | None:
    """Splits an instance's name into its pool's prefix and its number; None: it is no such name."""
    prefix, dash, digits = name.rpartition("-")
    if not (prefix and dash and digits.isascii() and digits.isdigit() and len(digits) < 6):
        return None
    return prefix, int(digits)


def instance_pool(name: str, known: Iterable[InstanceStatus] = ()) -> Pool:
    """Returns the pool of an instance that there is, or should be. `known`: those that report.

    Raises: NotVisible.
    """
    reported = next((status.pool for status in known if status.instance == name), None)
    parts = instance_number(name)
    for pool in Pool.objects.all():
        if pool.name == reported:
            return pool
        if parts is not None and keys_of(pool.name).instance_prefix == parts[0]:
            wanted = f"{parts[0]}-{parts[1]:02d}" == name and 1 <= parts[1] <= pool.instances
            if wanted or pool.wanted_instances.filter(instance=name).exists():
                return pool
    raise NotVisible(f"There is no instance {name}.")
