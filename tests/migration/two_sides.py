"""Two engines with their agents, in one process: real step loops and agents, fakes around them."""

import threading
import time
from collections.abc import Callable, Sequence

from engine_pool.load_book import LoadBook
from engine_pool.ports import EngineRequest
from engine_pool.step_loop import StepLoop
from engine_pool.token_log import TokenFrame
from engine_pool.types import InstanceName
from migration.agent import MigrationAgent
from migration.engine_side import EngineSide
from migration.links import Invitation
from migration.office import AgentSettings
from migration.ports import Refusal
from migration.report import MoveEnd, MoveReport, MoveState
from migration.stages import StageLimits
from migration.wish import MoveWish
from tests.migration.moving_fake import SHAPE, FakePlane, MemoryLink, MovingFake, PlaneHub

PATIENCE_S = 60.0


class SharedLog:
    """The token log as both sides see it: refuses what is not above its last entry."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.frames: dict[str, list[TokenFrame]] = {}
        self.last: dict[str, tuple[int, int]] = {}
        self.is_away = False

    def append(self, frame: TokenFrame) -> bool:
        epoch, _, position = frame.entry_id.partition("-")
        at = (int(epoch), int(position))
        with self.lock:
            if at <= self.last.get(frame.request_id, (0, 0)):
                return False
            self.last[frame.request_id] = at
            self.frames.setdefault(frame.request_id, []).append(frame)
            return True

    def tokens(self, request_id: str) -> list[int]:
        """Returns the tokens, having checked that there is neither gap nor repeat."""
        said: list[int] = []
        for frame in list(self.frames.get(request_id, ())):
            assert frame.start == len(said), f"{frame} after {len(said)} tokens"
            said += frame.token_ids
        return said

    def is_over(self, request_id: str) -> bool:
        frames = self.frames.get(request_id)
        return bool(frames) and frames[-1].is_last

    def reclaim(self, request_id: str, epoch: int) -> int | None:
        if self.is_away:
            raise OSError("the store is away")
        with self.lock:
            if self.last.get(request_id, (0, 0))[0] > epoch:
                return None
            self.last[request_id] = (epoch + 2, 0)
            return epoch + 2


class Side:
    """One engine process."""

    def __init__(self, name: str, log: SharedLog, hub: PlaneHub, **settings: object) -> None:
        self.name = name
        self.engine = MovingFake()
        self.log = log
        self.reports: list[MoveReport] = []
        self.ends: list[MoveEnd] = []
        self.awaited: list[Callable[[], None]] = []
        self.holds_log = False
        book = LoadBook(InstanceName(name), f"{name}-inc")
        self.loop = StepLoop(
            lambda: self.engine, book, self, max_age_s=1000, on_death=self.deaths().append
        )
        self.plane = FakePlane(hub, self.engine)
        usual = {
            "instance": name,
            "incarnation": f"{name}-inc",
            "is_on": True,
            "at_once": 4,
            "limits": StageLimits(8, 1),
            "stage_timeout_s": 5.0,
            "pause_timeout_s": 5.0,
            "commit_timeout_s": 5.0,
        }
        self.agent = MigrationAgent(
            AgentSettings(**(usual | settings)),
            EngineSide(self.loop, lambda engine: engine.moves),
            self.plane,
            SHAPE,
            self,
            self,
            self.connect,
        )
        self.peers: dict[str, Side] = {}
        self.links: list[MemoryLink] = []
        self.gate: Callable[[bytes], bool] = lambda blob: True
        """For what is sent to this side."""
        self.is_unreachable = False

    def deaths(self) -> list[BaseException]:
        self.died: list[BaseException] = []
        return self.died

    def start(self) -> None:
        self.loop.start()
        self.loop.ready.result(PATIENCE_S)
        self.agent.start()

    def run(self) -> None:
        """Lets the engine step from now on."""
        self.engine.runs = True
        self.loop.between_steps(lambda engine: None)

    def allow(self, steps: int) -> None:
        """Lets the engine take so many steps more, and waits for them."""
        before = len(self.engine.batches)
        self.engine.allowed = steps
        self.loop.between_steps(lambda engine: None)
        until(lambda: len(self.engine.batches) >= before + steps)

    def stop(self) -> None:
        self.agent.stop(PATIENCE_S)
        self.loop.stop(PATIENCE_S)
        assert not self.died

    def publish(self, frames: Sequence[TokenFrame], firsts: frozenset[str]) -> None:
        refused = [f.request_id for f in frames if not self.log.append(f)]
        if refused:
            self.loop.drop(refused)

    def when_logged(self, tell: Callable[[], None]) -> None:
        if self.holds_log:
            self.awaited.append(tell)
        else:
            tell()

    def reclaim(self, request_id: str, epoch: int) -> int | None:
        return self.log.reclaim(request_id, epoch)

    def report_move(self, move: MoveReport) -> None:
        self.reports.append(move)

    def report_move_end(self, end: MoveEnd) -> None:
        self.ends.append(end)

    def connect(self, invitation: Invitation, timeout_s: float, on_message, on_closed):
        peer = self.peers[invitation.host]
        if peer.is_unreachable:
            raise OSError("nobody listens")
        mine = MemoryLink(on_message, on_closed)
        theirs = MemoryLink(peer.agent.on_message, peer.agent.on_closed)
        mine.other, theirs.other = theirs, mine
        mine.gate = lambda blob: peer.gate(blob)
        theirs.gate = lambda blob: self.gate(blob)
        self.links.append(mine)
        return mine

    def submit(self, *requests: EngineRequest) -> None:
        assert self.loop.submit(list(requests)).result(PATIENCE_S) == []

    def cut(self) -> None:
        """Cuts all connections that this side has made."""
        for link in self.links:
            link.close()

    def states(self) -> list[MoveState]:
        return [report.state for report in self.reports]


class Two:
    """A source `a` and a destination `b`."""

    def __init__(self, **settings: object) -> None:
        self.log = SharedLog()
        self.hub = PlaneHub()
        self.a = Side("i-01", self.log, self.hub, **settings)
        self.b = Side("i-02", self.log, self.hub, **settings)
        self.a.peers["i-02"] = self.b
        self.b.peers["i-01"] = self.a

    def start(self) -> None:
        self.a.start()
        self.b.start()

    def stop(self) -> None:
        self.a.stop()
        self.b.stop()

    def migrate(self, request_id: str, name: str = "m1", *, back: bool = False) -> Refusal | None:
        source, destination = (self.b, self.a) if back else (self.a, self.b)
        wish = MoveWish(
            name, request_id, destination.name, f"{destination.name}-inc", "actor", "a test", "why"
        )
        invitation = Invitation(destination.name, 1, b"")
        return source.agent.migrate(wish, invitation).result(PATIENCE_S)

    def end_of(self, name: str = "m1", side: Side | None = None) -> MoveReport:
        """Waits for the last report of a move."""
        side = side or self.a

        def last() -> MoveReport | None:
            found = [r for r in side.reports if r.migration_id == name and r.state.is_end]
            return found[-1] if found else None

        return until(last)

    def check_empty(self) -> None:
        """Waits until nothing is left on either side, and asserts that."""
        for side in (self.a, self.b):
            until(
                lambda s=side: not (s.engine.requests or s.engine.parked_requests or s.engine.held)
            )
            until(lambda s=side: len(s.engine.free) == s.engine.capacity)
            side.engine.check_empty()


def until(claim: Callable[[], object]):
    give_up_s = time.monotonic() + PATIENCE_S
    while not (found := claim()):
        assert time.monotonic() < give_up_s, "it does not happen"
        time.sleep(0.002)
    return found


def run_to_end(pair: Two, request_id: str, tokens: int) -> None:
    pair.a.run()
    pair.b.run()
    until(lambda: pair.log.is_over(request_id))
    assert pair.log.tokens(request_id) == list(range(1, tokens + 1))
