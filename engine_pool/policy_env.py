"""The variables that set the rules of dispatch and rebalancing (policy/settings.py has the
reasons)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine_pool.env_values import integer, number, read, switch
from engine_pool.errors import ConfigError
from engine_pool.policy.settings import HeadroomRule, PolicySettings, QueueRule
from engine_pool.types import PriorityClass


@dataclass(frozen=True, slots=True)
class Variable:
    """One setting: where it goes, and how its text is read."""

    field: str
    """Of DispatchRule or RebalanceRule."""
    parse: Callable[[str], object]


DISPATCH: Final[Mapping[str, Variable]] = {
    "FERRY_DISPATCH_QUEUE": Variable("queue", QueueRule),
    "FERRY_PACK_CLASSES": Variable("packs_classes", switch),
    "FERRY_ELASTIC_HEADROOM": Variable("is_elastic", switch),
    "FERRY_HEADROOM_LENT": Variable("lent_share", number(0.0, 1.0)),
    "FERRY_PREFIX_MIN_TOKENS": Variable("prefix_min_tokens", integer(1, 10_000_000)),
    "FERRY_PREFIX_MIN_SHARE": Variable("prefix_min_share", number(0.0, 1.0)),
    "FERRY_PREFIX_FLOOR_STEPS": Variable("prefix_floor_steps", number(0.0)),
    "FERRY_LATE_BINDING": Variable("is_late_binding", switch),
    "FERRY_LATE_FLOOR_STEPS": Variable("late_floor_steps", number(0.0)),
    "FERRY_LATE_PASS_S": Variable("late_pass_s", number(0.0)),
}
REBALANCE: Final[Mapping[str, Variable]] = {
    "FERRY_REBALANCE": Variable("is_on", switch),
    "FERRY_REBALANCE_BELOW_STEPS": Variable("below_steps", number(-1e9, 1e9)),
    "FERRY_REBALANCE_ABOVE_STEPS": Variable("above_steps", number(-1e9, 1e9)),
    "FERRY_REBALANCE_INTERVAL_MS": Variable("interval_ms", number(10.0, 60_000.0)),
    "FERRY_REBALANCE_MOVES": Variable("moves_per_instance", integer(1, 256)),
    "FERRY_REBALANCE_TOKENS": Variable("tokens_per_round", integer(1, 1_000_000_000)),
    "FERRY_DEFRAGMENT": Variable("defragments", switch),
}
HIGH_TARGET: Final = "FERRY_HIGH_TARGET_TOKENS"


def read_policy(environ: Mapping[str, str]) -> PolicySettings:
    """Raises: ConfigError naming the variable whose value cannot work."""
    default = PolicySettings()
    dispatch, rebalance = (
        {
            v.field: read(environ, name, v.parse, getattr(rule, v.field))
            for name, v in variables.items()
        }
        for variables, rule in ((DISPATCH, default.dispatch), (REBALANCE, default.rebalance))
    )
    target = default.dispatch.headroom.target_load_tokens[PriorityClass.HIGH]
    tokens = read(environ, HIGH_TARGET, integer(0, 1_000_000_000), target)
    # 0 means that the class wants no headroom.
    headroom = HeadroomRule({PriorityClass.HIGH: tokens} if tokens else {})
    try:
        return PolicySettings(
            replace(default.dispatch, headroom=headroom, **dispatch),
            replace(default.rebalance, **rebalance),
        )
    except ValueError as error:
        raise ConfigError(f"FERRY_REBALANCE_ABOVE_STEPS: {error}") from None
