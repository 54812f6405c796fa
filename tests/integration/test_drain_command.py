"""`manage.py drain` and the REST calls beside it, on engines with streams: nobody notices a drain,
and it ends with the proof."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engine_pool.types import InstanceState, InstanceStatus
from tests.integration.installation import DEADLINE_S, ROOT, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import Event, open_stream, take
from tests.integration.test_moves import check_whole, wait_tested, whole_body

STREAMS = 6
TOKENS = 300
COMMAND_S = 4 * DEADLINE_S
"""A command starts a process twice, and a busy machine takes a minute for each."""

pytestmark = pytest.mark.timeout(3 * COMMAND_S)


@pytest.fixture
def operator(idle: Installation) -> Iterator[Operator]:
    wait_tested(idle)
    with Operator(idle) as one:
        yield one
        for name in ("i-01", "i-02"):
            one.post(f"/instances/{name}/release", {"force": True})
        wait_tested(idle)


def command(idle: Installation, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs it as from any shell: it finds the installation by its folder alone."""
    return subprocess.run(
        [sys.executable, "manage.py", "drain", *arguments],
        cwd=ROOT, env=idle.environ, capture_output=True, text=True, timeout=COMMAND_S,
    )  # fmt: skip


def status_of(idle: Installation, instance: str) -> InstanceStatus:
    return next(s for s in idle.statuses() if s.instance == instance)


def test_a_drain_under_streams_ends_verified_and_no_stream_is_cut(
    idle: Installation, operator: Operator
) -> None:
    begun: list[int] = []

    def read(number: int) -> list[Event]:
        with open_stream(idle.url, idle.headers, whole_body(TOKENS)) as stream:
            events = take(stream, 1)
            begun.append(number)
            return events + list(stream)

    with ThreadPoolExecutor(STREAMS) as readers:
        reading: list[Future[list[Event]]] = [readers.submit(read, n) for n in range(STREAMS)]
        wait_for(lambda: len(begun) == STREAMS, "all have begun")
        done = command(idle, "i-02", "--reason", "kernel update", "--wait", "--timeout", "400")
        streams = [one.result() for one in reading]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "i-02 drained. Safe to stop. Verified empty at" in done.stdout.splitlines()[-1]
    for events in streams:
        check_whole(events, TOKENS)
    status = status_of(idle, "i-02")
    assert status.state is InstanceState.DRAINED
    assert status.drain is not None
    assert status.drain.verified_unix_s is not None
    told = operator.get("/instances/i-02/drain")
    assert (told["is_safe_to_stop"], told["wish"]["reason"]) == (True, "kernel update")
    assert told["wanted_by"].startswith("command:")
    # The other one is the last that serves now, and the first is somebody else's.
    last = operator.post("/instances/i-01/drain", {})
    assert (last.status_code, last.json()["error"]["code"]) == (409, "needs_force")
    answer = operator.post("/instances/i-02/release", {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "wished_by_another")
    assert command(idle, "i-02", "--release").returncode == 0
    wait_for(lambda: status_of(idle, "i-02").state is InstanceState.SERVING, "i-02 serves again")
    assert operator.get("/instances/i-02/drain")["is_safe_to_stop"] is False


def test_a_restart_lands_on_a_fresh_engine_and_its_wish_is_tidied_away(
    idle: Installation, operator: Operator
) -> None:
    before = status_of(idle, "i-01").incarnation
    answer = operator.post("/instances/i-01/restart", {"reason": "new driver"})
    assert answer.status_code == 202
    assert (answer.json()["is_renewing"], answer.json()["wanted"]) == (True, "serving")

    def renewed() -> bool:
        status = status_of(idle, "i-01")
        return status.state is InstanceState.SERVING and status.incarnation != before

    wait_for(renewed, "i-01 has a new engine", COMMAND_S)
    wait_for(lambda: operator.get("/instances/i-01/drain")["wish"] is None, "the wish is fulfilled")
