"""Engine processes around one real store, and what a test wants to know of them all."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, groupby

import redis

from engine_pool import view
from engine_pool.config import PoolConfig
from engine_pool.engine_spec import EngineSpec
from engine_pool.ports import EngineRequest
from engine_pool.token_log import TokenFrame, decode_all, log_key, route_key
from engine_pool.types import EngineKind, InstanceName
from migration.report import MoveReport
from migration.wish import MoveWish
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.test_simulated_moves import TEXT
from tests.migration.engine_process import EngineProcess

PATIENCE_S = 120.0
"""For what takes a moment on an idle machine."""
MAX_MODEL_LEN = 4096
PATIENT = PoolConfig(
    engine=EngineKind.SIMULATED,
    report_interval_ms=50,
    orphan_grace_s=600.0,
    max_running=8,
    migration_stage_timeout_s=60.0,
    migration_pause_timeout_s=60.0,
    migration_commit_timeout_s=60.0,
)
"""No timer ends a move: it stays where the test has brought it. Nobody listens to the streams: the
test reads their logs."""


class Rig:
    """Two engines, `a` and `b`, and more when one of them has died."""

    def __init__(self, store: StoreServer, config: PoolConfig = PATIENT) -> None:
        self.redis = redis.Redis.from_url(store.url)
        self.config = replace(config, redis_url=store.url)
        self._numbers = count(1)
        self._all: list[EngineProcess] = []
        self.a, self.b = self.new("i-01"), self.new("i-02")
        self.a.wait_ready()
        self.b.wait_ready()

    def new(self, name: str) -> EngineProcess:
        """Begins to start a process; `wait_ready` is the caller's."""
        incarnation = f"{name}-{next(self._numbers)}"
        is_simulated = self.config.engine is EngineKind.SIMULATED
        spec = EngineSpec(
            InstanceName(name),
            incarnation,
            self.config,
            "m" if is_simulated else self.config.model,
            1,
            MAX_MODEL_LEN if is_simulated else 0,
            TEXT if is_simulated else None,
        )
        process = EngineProcess(spec)
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            process.kill()

    def submit(self, at: EngineProcess, *requests: EngineRequest) -> None:
        for request in requests:
            self.redis.set(route_key(request.request_id), "nobody")
        at.submit(*requests)

    def migrate(
        self, request_id: str, source: EngineProcess, destination: EngineProcess, name: str
    ) -> str:
        """Begins a move. Returns why not, "" when it has begun."""
        wish = MoveWish(
            name, request_id, destination.name, destination.incarnation, "actor", "a test", "why"
        )
        answer = source.ask("migrate", wish, destination.ask("invite"))
        assert isinstance(answer, str)
        return answer

    def frames(self, request_id: str) -> list[TokenFrame]:
        entries = self.redis.xrange(log_key(request_id))
        return [
            frame
            for _, fields in entries
            for field, blob in fields.items()
            if field != b"x"
            for frame in decode_all(blob)
            if isinstance(frame, TokenFrame)
        ]

    def tokens(self, request_id: str) -> list[int]:
        """Returns what a reader has been told, having checked that there is no gap and no
        repeat."""
        said: list[int] = []
        for frame in self.frames(request_id):
            assert frame.start == len(said), f"{frame} after {len(said)} tokens"
            said += frame.token_ids
        return said

    def instances(self, request_id: str) -> list[str]:
        """Returns where its tokens came from, one after the other."""
        return [name for name, _ in groupby(f.instance for f in self.frames(request_id))]

    def wait_end(self, request_id: str) -> TokenFrame:
        """Waits for the last frame of a stream."""

        def last() -> TokenFrame | None:
            frames = self.frames(request_id)
            return frames[-1] if frames and frames[-1].is_last else None

        found = until(last, f"{request_id} ends")
        assert isinstance(found, TokenFrame)
        return found

    def moves_under_way(self) -> dict[str, MoveReport]:
        found = self.redis.hgetall(view.MOVES)
        return {name.decode(): view.decode_move(blob) for name, blob in found.items()}

    def ends_of(self, name: str) -> list[MoveReport]:
        """Returns the reports of a move's end, the newest first: the source's own, and perhaps that
        of its destination, which does not know whether the source still can."""
        entries = self.redis.xrevrange(view.MOVES_ENDED)
        reports = [view.decode_move(fields[b"m"]) for _, fields in entries]
        return [report for report in reports if report.migration_id == name]

    def ended_move(self, name: str) -> MoveReport | None:
        """Returns the last report of a move, None while there is none or it goes on."""
        if name in self.moves_under_way():
            return None
        return next(iter(self.ends_of(name)), None)

    def wait_move(self, name: str) -> MoveReport:
        """Waits until a move has ended in the view."""
        report = until(lambda: self.ended_move(name), f"the move {name} ends")
        assert isinstance(report, MoveReport)
        return report

    def wait_own_report(self, name: str) -> MoveReport:
        """Waits for what the source itself says of a move's end."""

        def own() -> MoveReport | None:
            ends = self.ends_of(name)
            return next((r for r in ends if r.seq < view.SEQ_OF_ANOTHER), None)

        report = until(own, f"the source tells how {name} ended")
        assert isinstance(report, MoveReport)
        return report

    def wait_empty(self, process: EngineProcess) -> None:
        """Waits until an engine holds nothing, for itself or for a move."""
        try:
            until(lambda: process.rooms().are_empty, "all is freed")
        except AssertionError:
            raise AssertionError(f"{process.name} holds {process.rooms()}") from None


def until(claim: Callable[[], object], what: str) -> object:
    """Polls until the claim is true, and returns what it gave."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not (found := claim()):
        assert time.monotonic() < give_up_s, f"it does not happen: {what}"
        time.sleep(0.01)
    return found
