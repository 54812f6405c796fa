"""A pool's settings, in groups, and how its row holds them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from django.core.exceptions import ValidationError

from controlplane.fleet.models import Pool
from controlplane.tenants.access import Role
from engine_pool.config import PoolConfig
from engine_pool.pool_settings import ENGINE_SETTINGS, shown_value
from web.settings_fields import AT_START, Field, Kind, written

ENVIRONMENT: Final = "the environment's"


class Group(NamedTuple):
    key: str
    title: str
    words: str
    fields: tuple[Field, ...]
    role: Role = Role.OPERATOR
    """Of the platform, that changes them."""


MODEL: Final = (
    Field("model", "Model", "A folder with a checkpoint or a hub id; empty: the default model.",
          "text", "", ENVIRONMENT, AT_START, is_optional=True, empty_words=ENVIRONMENT),
    Field("served_model_name", "Name for clients", "What clients write as “model”.", "text"),
)  # fmt: skip
INSTANCES: Final = (
    Field("is_enabled", "Enabled", "Off: its instances are stopped and its model is not listed.",
          "switch", "", "on"),
    Field("instances", "Instances", "Wanted now; more are started, the emptiest are ended.",
          "whole", "", "1"),
    Field("min_instances", "At least", "Fewest that may be wanted.", "whole", "", "1"),
    Field("max_instances", "At most", "Most that may be wanted.", "whole", "", "8"),
)  # fmt: skip
BAND: Final = (
    Field("band_low_steps", "Grows under", "Average freeness under which the pool is too small.",
          "number", "steps", "160"),
    Field("band_high_steps", "Shrinks over", "Average freeness over which it is too large.",
          "number", "steps", "960"),
)  # fmt: skip
SCALING: Final = (
    Field("scaling_mode", "Mode",
          "Advise: decisions are stored and shown, and nobody acts on them.",
          "choice", "", "off",
          choices=(("off", "off"), ("advise", "advise"), ("act", "act"))),
    *BAND,
    Field("grow_after_s", "Grows after", "So long under the band, an instance is added.",
          "number", "s", "0"),
    Field("shrink_after_s", "Shrinks after", "So long over the band, an instance is drained.",
          "number", "s", "60"),
    Field("grow_cooldown_s", "Pause after growth", "Until the next instance is added.",
          "number", "s", "0"),
    Field("shrink_cooldown_s", "Pause before shrinking",
          "After any change, until an instance is drained.", "number", "s", "120"),
    Field("ttft_attainment_floor", "First tokens in time",
          "Share, 0 to 1, of requests within their TTFT target, queue included; under it the pool"
          " grows. Empty: this does not count.",
          "number", "share", "none", is_optional=True, empty_words="does not count"),
)  # fmt: skip
TO_ZERO: Final = (
    Field("zero_after_s", "To zero after",
          "Idle for so long, the last instance is stopped as well; needs “at least” 0.",
          "number", "s", "never", is_optional=True, empty_words="never"),
    Field("hold_s", "Requests wait",
          "For the first instance of a pool at zero, while the mode is act; 0: refused at once.",
          "number", "s", "60"),
    Field("hold_max", "So many wait", "At the same time, in one web process; others get 503.",
          "whole", "requests", "100"),
)  # fmt: skip
REBALANCING: Final = (
    Field("rebalance_below_steps", "Gives under",
          "An instance less free than this gives running requests away.",
          "number", "steps", "48"),
    Field("rebalance_above_steps", "Takes over", "An instance freer than this takes them.",
          "number", "steps", "48"),
)  # fmt: skip
NEW_POOL: Final = (
    Field("name", "Name", "Of the pool: a-z, 0-9 and -; its instances begin with it.", "text"),
    *MODEL,
    Field("instances", "Instances", "That start at once.", "whole", "", "1"),
    Field("is_enabled", "Start it", "Off: it is only written down.", "switch", "", "on"),
)  # fmt: skip
LIMITS: Final = (
    Field("requests_per_minute", "Requests", "Of all tenants together; empty: no limit.",
          "whole", "/min", "none", is_optional=True, empty_words="no limit"),
    Field("tokens_per_minute", "Tokens", "Prompt and output tokens of all tenants together.",
          "whole", "/min", "none", is_optional=True, empty_words="no limit"),
    Field("concurrency", "At once", "Requests at the same time, of all tenants together.",
          "whole", "", "none", is_optional=True, empty_words="no limit"),
)  # fmt: skip

_ENGINE: Final[tuple[tuple[str, str, Kind, str, str], ...]] = (
    ("engine", "Engine", "text", "", "vllm, or simulated: without a model."),
    ("max_model_len", "Longest request", "whole", "tokens", "Prompt plus output."),
    ("kv_cache_gib", "KV cache", "number", "GiB", "Of an engine, over all its ranks."),
    ("max_running", "Batch", "whole", "requests", "Most requests in one step."),
    ("block_size", "Block", "whole", "tokens", "Of KV cache; smaller ones waste less."),
    ("engine_threads", "Threads", "whole", "", "CPU threads of a forward pass; 0: by cores."),
    ("tensor_parallel", "Ranks", "whole", "", "That the model is split over, a GPU each."),
    ("engine_memory_gib", "Other memory", "number", "GiB", "An engine's, besides its KV cache."),
    ("ageing_s", "Ageing", "number", "s", "A wait after which a request counts as a class higher."),
    ("class_preemptions_max", "Preemptions", "whole", "", "How often one request makes room."),
    ("fair_output_tokens", "Fair output", "whole", "tokens", "Reckoned for a tenant's turn."),
    ("migration", "Migration", "text", "", "on or off: whether requests may move."),
    ("migrations_at_once", "Moves at once", "whole", "", "Of one instance, in and out together."),
    ("migration_copies_max", "Copies", "whole", "", "Of a move before its pause, at most."),
    ("migration_last_blocks", "Last blocks", "whole", "", "That may be left for the pause."),
    ("migration_copy_share", "Copy share", "number", "", "Part of the time that copying takes."),
    ("migration_chunk_mib", "Chunk", "number", "MiB", "Buffer that blocks are fused in."),
    ("migration_stage_timeout_s", "Stage limit", "number", "s", "In which a copy must get on."),
    ("migration_pause_timeout_s", "Pause limit", "number", "s", "For the last blocks' transfer."),
    ("migration_commit_timeout_s", "Commit limit", "number", "s", "For the answer to a commit."),
)
ENGINE: Final = tuple(
    Field(name, label, words, kind, unit, "", AT_START, is_optional=True, empty_words=ENVIRONMENT)
    for name, label, kind, unit, words in _ENGINE
)
assert {field.name for field in ENGINE} == set(ENGINE_SETTINGS), "every engine setting has a row"


def groups_of(environment: PoolConfig) -> tuple[Group, ...]:
    """Returns the groups. `environment`: what an engine setting is without an own value."""
    engine = tuple(replace(field, default=_default(environment, field)) for field in ENGINE)
    return (
        Group(
            "model", "Model", "model and name change only while the pool is off", MODEL, Role.OWNER
        ),
        Group("instances", "Instances", "changes begin within a second", INSTANCES),
        Group("scaling", "Scaling", "how many instances there are, by itself", SCALING),
        Group("zero", "Scale to zero", "and back, when somebody asks", TO_ZERO),
        Group("rebalancing", "Rebalancing", "which running requests move", REBALANCING),
        Group("limits", "Limits", "over all tenants and web processes", LIMITS),
        Group(
            "engine", "Engine", "its instances take them when they start next", engine, Role.OWNER
        ),
    )


def fields_of(groups: tuple[Group, ...]) -> tuple[Field, ...]:
    return tuple(field for group in groups for field in group.fields)


def values_of_pool(pool: Pool) -> dict[str, Any]:
    """Returns a pool's values by field; an engine setting that it has not of its own is None."""
    plain = {f.name: getattr(pool, f.name) for f in fields_of(_PLAIN)}
    own = pool.engine_settings
    # As an empty field is read: no text, or no number.
    return plain | {f.name: own.get(f.name, "" if f.kind == "text" else None) for f in ENGINE}


def changes_for(pool: Pool, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a form's values as the row's fields, engine settings in their own."""
    known = {f.name for f in ENGINE}
    own = dict(pool.engine_settings)
    for name in known & values.keys():
        if values[name] in (None, ""):
            own.pop(name, None)
        else:
            own[name] = values[name]
    plain = {name: value for name, value in values.items() if name not in known}
    return {**plain, "engine_settings": own}


def unfolded(problem: ValidationError) -> ValidationError:
    """Returns a service's refusal with an engine setting's own name for its field."""
    if not hasattr(problem, "error_dict"):
        return problem
    told = {name: " ".join(words) for name, words in problem.message_dict.items()}
    found = _ENGINE_ERROR.fullmatch(told.get("engine_settings", ""))
    if found:
        told.pop("engine_settings")
        told[found["name"]] = found["words"]
    return ValidationError(told)


_ENGINE_ERROR: Final = re.compile(r"(?P<name>\w+)(?:='.*?')?: (?P<words>.+)", re.DOTALL)
"""How ConfigError tells of a setting: name='value': what is wrong."""
_PLAIN: Final = (
    Group("", "", "", MODEL),
    Group("", "", "", INSTANCES),
    Group("", "", "", SCALING),
    Group("", "", "", TO_ZERO),
    Group("", "", "", REBALANCING),
    Group("", "", "", LIMITS),
)


def _default(environment: PoolConfig, field: Field) -> str:
    value = shown_value(getattr(environment, field.name))
    if isinstance(value, bool):
        return "on" if value else "off"
    return written(field, value) or "by itself"
