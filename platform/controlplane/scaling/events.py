"""Decisions among the pool's events: changes, what was refused, and when it had to hold still."""

import logging
from typing import Final

import redis

from controlplane.fleet.publishing import keys_of
from controlplane.scaling.models import DecisionKind, ScalingDecision
from engine_pool.types import FleetEvent
from engine_pool.view import Bulletin

logger = logging.getLogger(__name__)

KIND_PREFIX: Final = "scaling_"
_TOLD: Final = {
    DecisionKind.GROW: "Scaled",
    DecisionKind.SHRINK: "Scaled",
    DecisionKind.UNDRAIN: "Scaled",
    DecisionKind.REFUSED: "Scaling refused",
    DecisionKind.HOLD: "Scaling holds still",
}


def event_of(row: ScalingDecision) -> FleetEvent | None:
    """Returns the event that tells of a decision; None for a heartbeat."""
    word = _TOLD.get(DecisionKind(row.kind))
    if word is None:
        return None
    is_change = row.instances_after != row.instances_before
    change = f" {row.instances_before} → {row.instances_after}" if is_change else ""
    advice = is_change and not row.is_applied
    return FleetEvent(
        at_unix_s=row.at.timestamp(),
        kind=f"{KIND_PREFIX}{row.kind}",
        headline=f"Advice: scale{change}" if advice else f"{word}{change}",
        detail=row.reason.replace("->", "→"),
        instance=row.instance,
        severity="warn" if row.kind == DecisionKind.HOLD else "info",
        link=f"/scaling/{row.pool}-{row.tick}/?pool={row.pool}",
    )


def event_tell(store: "redis.Redis[bytes]", row: ScalingDecision) -> None:
    """Tells of a decision that has been committed; what cannot be told stands on its own page."""
    event = event_of(row)
    if event is None:
        return
    try:
        Bulletin(store, keys_of(row.pool)).report_event(event)
    except (redis.RedisError, OSError) as error:
        logger.warning("%s: the decision is no event: %s", row.pool, type(error).__name__)
