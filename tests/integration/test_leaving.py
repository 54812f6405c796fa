"""A client that goes away, in each phase: the engine stops working for it."""

from collections.abc import Callable
from contextlib import ExitStack

from tests.integration.conftest import MAX_RUNNING
from tests.integration.installation import Installation, wait_for
from tests.integration.streams import endless_body, open_stream, send_only, take


def test_in_decode(idle: Installation) -> None:
    with open_stream(idle.url, idle.headers, endless_body()) as events:
        take(events, 5)
        assert wait_for(lambda: idle.running() == 1, "it runs")
    idle.wait_idle()


def test_without_having_seen_a_token(idle: Installation) -> None:
    with send_only(idle.url, idle.headers, endless_body(stream=False)):
        wait_for(lambda: idle.running() == 1, "it runs")
    idle.wait_idle()


def test_while_it_is_queued(idle: Installation) -> None:
    with ExitStack() as clients:
        running = 0
        while True:
            # One after another, so that the one that has to wait is the last.
            client = ExitStack()
            client.enter_context(send_only(idle.url, idle.headers, endless_body()))
            wait_for(lambda: idle.running() + idle.waiting() == running + 1, "it arrived")  # noqa: B023
            if wait_for(_settled(idle), "it runs or waits") == "waits":
                break
            clients.push(client)
            running += 1
        assert running >= MAX_RUNNING
        client.close()
        wait_for(lambda: idle.waiting() == 0, "the queue is empty")
        assert idle.running() == running, "the others go on"
    idle.wait_idle()


def _settled(idle: Installation) -> Callable[[], str]:
    """Returns a look that says whether the newest request runs or waits, once that is stable."""
    seen: list[str] = []

    def look() -> str:
        seen.append("waits" if idle.waiting() else "runs")
        return seen[-1] if seen[-5:] == [seen[-1]] * 5 else ""

    return look
