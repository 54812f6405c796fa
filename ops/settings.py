"""What `make up` was asked for: read once from the environment, checked, handed down.

The short names (`PORT`, `ENGINE`, ...) are for the command line; each has a long one under Ferry's
prefix, which the parts read. Where both are given, the short one wins.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
SHORT_NAMES = {
    "ENGINE": "FERRY_ENGINE",
    "INSTANCES": "FERRY_INSTANCES",
    "MODEL": "FERRY_MODEL",
    "PORT": "FERRY_PORT",
    "HOST": "FERRY_HOST",
    "KV_CACHE_GIB": "FERRY_KV_CACHE_GIB",
    "ENGINE_MEMORY_GIB": "FERRY_ENGINE_MEMORY_GIB",
}
DEFAULT_HOST = "127.0.0.1"
"""Only this machine: the first login and the first key lie in a file, and there is no TLS."""
DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Settings of one installation on this machine."""

    pool: PoolConfig
    host: str
    port: int
    var_dir: Path
    """Absolute; everything that the installation writes lies below it."""
    redis_url: str
    """A store that is there already; empty: start one."""
    ray_address: str
    """A Ray cluster that is there already; empty: start one."""

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def with_long_names(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with each short name's value under its long name."""
    merged = dict(environ)
    for short, long in SHORT_NAMES.items():
        if environ.get(short, "").strip():
            merged[long] = environ[short]
    return merged


def read_settings(environ: Mapping[str, str]) -> UpSettings:
    """Raises: ConfigError that names the variable as the person gave it."""
    merged = with_long_names(environ)
    try:
        pool = PoolConfig.from_env(merged)
        return UpSettings(
            pool=pool,
            host=_host(merged.get("FERRY_HOST", "")),
            port=_port(merged.get("FERRY_PORT", "")),
            var_dir=(ROOT / pool.var_dir).resolve(),
            redis_url=merged.get("REDIS_URL", ""),
            ray_address=merged.get("RAY_ADDRESS", ""),
        )
    except ConfigError as error:
        raise ConfigError(_as_given(str(error), environ)) from None


def _as_given(message: str, environ: Mapping[str, str]) -> str:
    for short, long in SHORT_NAMES.items():
        if environ.get(short, "").strip() and message.startswith(f"{long}="):
            return message.replace(long, short, 1)
    return message


def _host(text: str) -> str:
    host = text.strip() or DEFAULT_HOST
    if host == "localhost":
        return DEFAULT_HOST
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        raise ConfigError(f"FERRY_HOST={text!r}: expected an IP address of this machine") from None


def _port(text: str) -> int:
    text = text.strip() or str(DEFAULT_PORT)
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ConfigError(f"FERRY_PORT={text!r}: expected a whole number from 1 to 65535")
    return int(text)


def current() -> UpSettings:
    """Reads this process's environment. Raises: ConfigError."""
    return read_settings(os.environ)
