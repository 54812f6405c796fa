"""A pool of two instances as one process sees it, whose engines say what a test wants of moves."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from engine_pool.config import PoolConfig
from engine_pool.errors import InstanceLost, MoveRefused
from engine_pool.live_view import LiveView
from engine_pool.moves import Moves
from engine_pool.store import connect_async
from migration.report import MoveReport, MoveState, StageReport
from tests.controlplane.fakes import load_of, status_of


@dataclass
class FakeMoveGate:
    """A MoveGate whose actors do as they are told."""

    wishes: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    cancelled: list[tuple[str, str]] = field(default_factory=list)
    measured: list[tuple[str, str]] = field(default_factory=list)
    refusal: tuple[str, str] | None = None
    is_silent: bool = False
    knows_moves: bool = True
    unreachable: set[str] = field(default_factory=set)
    """Actors that nobody can send KV to."""
    rates: dict[str, float] = field(default_factory=dict)
    """Source's actor -> bytes a second; else 2e9."""

    async def migrate(self, actor: str, wish: dict[str, object]) -> tuple[str, str] | None:
        if self.is_silent:
            raise InstanceLost(f"{actor} did not answer for 10 s.")
        self.wishes.append((actor, wish))
        return self.refusal

    async def cancel_move(self, actor: str, migration_id: str) -> bool:
        self.cancelled.append((actor, migration_id))
        return self.knows_moves

    async def measure(
        self, actor: str, destination_actor: str, size_bytes: int
    ) -> dict[str, float]:
        self.measured.append((actor, destination_actor))
        if destination_actor in self.unreachable:
            raise MoveRefused(f"{destination_actor} does not listen")
        return {"bytes_per_s": self.rates.get(actor, 2e9), "round_trip_ms": 0.5}


class MovingPool:
    """What the control plane uses of a PoolClient."""

    def __init__(self, url: str = "redis://127.0.0.1:1/0") -> None:
        self.config = PoolConfig(redis_url=url)
        self.store: Any = connect_async(url)
        self.view = LiveView(self.store)
        self.gate = FakeMoveGate()
        self.moves = Moves(self.view, self.gate)
        self._seq = 0

    def serve(self, *names: str, running: dict[str, list[str]] | None = None) -> None:
        """Has instances report that they serve, with the requests that they run."""
        for name in names:
            self._seq += 1
            requests = (running or {}).get(name, ())
            self.view.apply(replace(status_of(name), max_model_len=2048))
            self.view.apply(load_of(name, self._seq, used=160, running=requests))


def report_of(migration_id: str, **changes: Any) -> MoveReport:
    """Returns the report of a move from i-01 to i-02 that goes on, 5 s old."""
    now_unix_s = time.time()
    plain = MoveReport(
        migration_id=migration_id,
        request_id="r1",
        seq=1,
        state=MoveState.COPYING,
        source="i-01",
        source_incarnation="a",
        destination="i-02",
        destination_incarnation="a",
        started_unix_s=now_unix_s - 5.0,
        at_unix_s=now_unix_s,
        asked_by="operator olga",
        reason="operator olga: to try it",
        priority_class="normal",
        tokens_at_start=512,
    )
    return replace(plain, **changes)


def committed(migration_id: str, **changes: Any) -> MoveReport:
    """Returns the last report of a move that went well."""
    told = {
        "seq": 9,
        "state": MoveState.COMMITTED,
        "stages": (
            StageReport(1, False, 1.0, 20.0, 32, 4096),
            StageReport(2, True, 30.0, 2.0, 1, 128),
        ),
        "sent_bytes": 4224,
        "ended_ms": 60.0,
        "downtime_ms": 9.0,
    }
    return report_of(migration_id, **{**told, **changes})


def aborted(migration_id: str, code: str = "no_blocks", **changes: Any) -> MoveReport:
    """Returns the last report of a move that was given up."""
    told = {
        "seq": 5,
        "state": MoveState.ABORTED,
        "abort_code": code,
        "abort_reason": "i-02 had 12 free blocks and needed 41",
        "ended_ms": 30.0,
    }
    return report_of(migration_id, **{**told, **changes})
