"""How an operator wants something done to an instance, and what speaks against it.

Used by wish_services.py alone, but for `Terms` and the refusals, which the doors know.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from django.core.exceptions import ValidationError

from controlplane.errors import NotVisible, Refused, VersionConflict
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.models import WantedNode, Wish
from controlplane.fleet.wish_rows import wanted_word, wishes_now
from controlplane.tenants.access import Access
from engine_pool.policy.wishes import Leftover, WantedState
from engine_pool.types import InstanceState

SCALING: Final = "scaling"
"""Who wants what the scaling loop wants; a person's wish replaces it without being asked."""
DEADLINE_MAX_S: Final = 7 * 24 * 3600.0
"""A drain that may take longer has no deadline."""
REASON_MAX_CHARS: Final = 500
NONE_SEEN: Final = 0
"""Rows' versions begin with 1."""


class WishedByAnother(Refused):
    """Somebody else wants something of it already, and the caller has not said that they know."""

    code = "wished_by_another"


class NeedsForce(Refused):
    """It would leave a pool without an instance that serves."""

    code = "needs_force"


class NothingToRestart(Refused):
    """Its engine is to be empty or ended, so a new one would not serve."""

    code = "nothing_to_restart"


class HeldByNode(Refused):
    """It is its node's wish that holds, so there is nothing of its own to release."""

    code = "held_by_node"


@dataclass(frozen=True, slots=True)
class Terms:
    """How somebody wants something done."""

    reason: str = ""
    deadline_s: float | None = None
    """After so long `leftover` is done to what is still there; None: never."""
    leftover: Leftover = Leftover.WAIT
    version: int | None = None
    """The wish's version that they have seen, NONE_SEEN: that there is none; None: they have not
    looked."""
    is_forced: bool = False
    """Also when it is the last instance that serves, and whoever wished before."""


def node_check(node: str, now: FleetNow) -> None:
    """Raises: NotVisible for a node that nobody knows."""
    if node not in now.nodes and not WantedNode.objects.filter(node=node).exists():
        raise NotVisible(f"There is no node {node}.")


def left_without(now: FleetNow, leaving: Collection[str]) -> list[str]:
    """Returns the pools that serve now and would not, were these instances to take nothing more."""
    wishes = wishes_now()

    def stays(name: str, node: str) -> bool:
        wish = wishes.joined(name, node)
        return wish.wanted is WantedState.SERVING and name not in leaving

    serving = [s for s in now.statuses.values() if s.state is InstanceState.SERVING]
    hit = {s.pool for s in serving if s.instance in leaving}
    kept = {s.pool for s in serving if stays(s.instance, s.node)}
    return sorted(hit - kept)


def check_terms(terms: Terms) -> None:
    """Raises: ValidationError naming the field."""
    if len(terms.reason) > REASON_MAX_CHARS:
        raise ValidationError({"reason": f"has more than {REASON_MAX_CHARS} characters"})
    if terms.deadline_s is None:
        if terms.leftover is not Leftover.WAIT:
            raise ValidationError(
                {"deadline_s": f"{terms.leftover} happens at a deadline, so there must be one"}
            )
        return
    if not 0 < terms.deadline_s <= DEADLINE_MAX_S:
        raise ValidationError({"deadline_s": f"must be above 0 and at most {DEADLINE_MAX_S:g}"})


def check_known(row: Wish | None, access: Access, terms: Terms, name: str) -> int | None:
    """Returns the version that the change is of; None: any. Another person's wish is replaced only
    by who has seen it. Raises: WishedByAnother, VersionConflict."""
    if row is None:
        if terms.version:
            raise VersionConflict(name, NONE_SEEN)
        return None
    if terms.version == NONE_SEEN:
        if row.by == access.who:
            # The same press came twice.
            return None
        raise VersionConflict(name, row.version)
    if terms.version is not None or terms.is_forced or row.by in (access.who, SCALING):
        return terms.version
    said = f' ("{row.reason}")' if row.reason else ""
    raise WishedByAnother(
        f"{row.by} wants {name} {wanted_word(row)} since {row.since:%Y-%m-%d %H:%M:%S} UTC{said}; "
        f"send version {row.version} to replace that."
    )


def check_others(now: FleetNow, leaving: Collection[str], terms: Terms) -> None:
    """Raises: NeedsForce when a pool would be left without an instance that serves."""
    if terms.is_forced:
        return
    if not now.is_known:
        raise NeedsForce(
            "The store does not answer, so nobody knows what else serves; force it all the same."
        )
    if without := left_without(now, leaving):
        raise NeedsForce(f"{last_words(without, len(leaving))} Force it to do it all the same.")


def last_words(pools: Collection[str], instances: int) -> str:
    """Says what happens when nothing of these pools serves any more."""
    which = "It is the last instance" if instances == 1 else "These are the last instances"
    return (
        f"{which} of pool {', '.join(pools)} that serves: nothing can take its requests. They go "
        "on there to their end or to the deadline, and new ones get 503 until it is released."
    )
