"""How the values of PoolConfig's fields are read: from the environment's text, or from a pool's own
settings, which are JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from engine_pool.env_values import integer, number, one_of, read, switch
from engine_pool.errors import ConfigError
from engine_pool.types import EngineKind

SettingValue = str | int | float | bool | None
"""A pool's own value of a field; None: as the environment has it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field."""

    variable: str
    parse: Callable[[str], object]


INSTALLATION: Final[Mapping[str, Setting]] = {
    "pool": Setting("FERRY_POOL", str),
    "instances": Setting("FERRY_INSTANCES", integer(0, 512)),
    "model": Setting("FERRY_MODEL", str),
    "dtype": Setting("FERRY_DTYPE", one_of("auto", "bfloat16", "float16", "float32")),
    "served_model_name": Setting("FERRY_SERVED_MODEL_NAME", str),
    "redis_url": Setting("REDIS_URL", str),
    "ray_address": Setting("RAY_ADDRESS", str),
    "var_dir": Setting("FERRY_VAR_DIR", Path),
    "log_live_s": Setting("FERRY_REQUEST_MAX_AGE_S", integer(10, 86_400)),
    "log_ended_s": Setting("FERRY_RESUME_S", integer(1, 86_400)),
    "orphan_grace_s": Setting("FERRY_ORPHAN_GRACE_S", number(0.0)),
    "replay": Setting("FERRY_REPLAY", switch),
    "replays_at_once": Setting("FERRY_REPLAYS_AT_ONCE", integer(1, 1000)),
    "replay_wait_s": Setting("FERRY_REPLAY_WAIT_S", number(0.0)),
    "term_grace_s": Setting("FERRY_TERM_GRACE_S", number(0.0)),
}
"""The same for all pools, or a field of their rows."""
ENGINE_SETTINGS: Final[Mapping[str, Setting]] = {
    "engine": Setting("FERRY_ENGINE", EngineKind),
    "max_model_len": Setting("FERRY_MAX_MODEL_LEN", integer(16, 10_000_000)),
    "kv_cache_gib": Setting("FERRY_KV_CACHE_GIB", number(0.01)),
    "max_running": Setting("FERRY_MAX_RUNNING", integer(1, 4096)),
    "block_size": Setting("FERRY_BLOCK_SIZE", integer(1, 1024)),
    "engine_threads": Setting("FERRY_ENGINE_THREADS", integer(0, 1024)),
    "tensor_parallel": Setting("FERRY_TENSOR_PARALLEL", integer(1, 64)),
    "engine_memory_gib": Setting("FERRY_ENGINE_MEMORY_GIB", number(0.1)),
    "ageing_s": Setting("FERRY_AGEING_S", number(0.0)),
    "class_preemptions_max": Setting("FERRY_CLASS_PREEMPTIONS_MAX", integer(0, 1000)),
    "fair_output_tokens": Setting("FERRY_FAIR_OUTPUT_TOKENS", integer(1, 10_000_000)),
    "migration": Setting("FERRY_MIGRATION", switch),
    "migrations_at_once": Setting("FERRY_MIGRATIONS_AT_ONCE", integer(1, 256)),
    "migration_copies_max": Setting("FERRY_MIGRATION_COPIES_MAX", integer(1, 100)),
    "migration_last_blocks": Setting("FERRY_MIGRATION_LAST_BLOCKS", integer(0, 1000)),
    "migration_copy_share": Setting("FERRY_MIGRATION_COPY_SHARE", number(0.01, 1.0)),
    "migration_chunk_mib": Setting("FERRY_MIGRATION_CHUNK_MIB", number(0.01)),
    "migration_stage_timeout_s": Setting("FERRY_MIGRATION_STAGE_TIMEOUT_S", number(0.1)),
    "migration_pause_timeout_s": Setting("FERRY_MIGRATION_PAUSE_TIMEOUT_S", number(0.1)),
    "migration_commit_timeout_s": Setting("FERRY_MIGRATION_COMMIT_TIMEOUT_S", number(0.1)),
}
"""What a pool may have of its own; they take effect when an instance starts."""


def read_engine_settings(values: Mapping[str, SettingValue]) -> dict[str, object]:
    """Returns a pool's own values of PoolConfig's fields, as the environment's would be read.

    Raises: ConfigError that begins with the name of the field.
    """
    found: dict[str, object] = {}
    for name, value in values.items():
        setting = ENGINE_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"{name}: is no setting of a pool's engines")
        if value is not None and value != "":
            found[name] = read({name: _as_text(name, value)}, name, setting.parse, None)
    return found


def shown_value(value: object) -> SettingValue:
    """Returns a field's value as a pool's own settings would have it."""
    if isinstance(value, Enum):
        return str(value.value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _as_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    raise ConfigError(f"{name}: expected a text, a number, true or false")
