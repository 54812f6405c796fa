"""The product's web process with the synthetic engine behind it instead of Ray's actors.

uvicorn benchmarks.token_path_web:application
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from benchmarks.synthetic_engine import SocketGate  # noqa: E402
from engine_pool import client as client_module  # noqa: E402
from engine_pool.config import PoolConfig  # noqa: E402

_client = client_module.PoolClient(
    PoolConfig.from_env(os.environ), gate=SocketGate(os.environ["FERRY_BENCH_ENGINE"])
)
# Before the application is imported: its modules take the function's name, not its result.
client_module.pool_client = lambda: _client  # type: ignore[assignment]

from controlplane.asgi import application  # noqa: E402

__all__ = ["application"]
