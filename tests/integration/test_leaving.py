"""A client that goes away, in each phase: the engine stops working for it.

On a real engine, which can be asked for minutes of decoding: what ends early did not end by itself.
"""

import json
from contextlib import ExitStack

from tests.integration.conftest import MAX_RUNNING
from tests.integration.installation import Installation, wait_for
from tests.integration.streams import endless_body, open_socket, open_stream, send_only, take


def test_in_decode(real: Installation) -> None:
    real.wait_idle()
    with open_stream(real.url, real.headers, endless_body()) as events:
        take(events, 5)
        wait_for(lambda: real.running() == 1, "it runs")
    real.wait_idle()


def test_without_having_seen_a_token(real: Installation) -> None:
    real.wait_idle()
    with send_only(real.url, real.headers, endless_body(stream=False)):
        wait_for(lambda: real.running() == 1, "it runs")
    real.wait_idle()


def test_while_it_is_queued(real: Installation) -> None:
    real.wait_idle()
    with ExitStack() as others:
        for _ in range(MAX_RUNNING):
            others.enter_context(send_only(real.url, real.headers, endless_body()))
        wait_for(lambda: real.running() == MAX_RUNNING, "the engine is full")
        with send_only(real.url, real.headers, endless_body()):
            wait_for(lambda: real.waiting() == 1, "it is queued")
        wait_for(lambda: real.waiting() == 0, "the queue is empty")
        assert real.running() == MAX_RUNNING, "the others go on"
    real.wait_idle()


def test_over_a_socket_that_closes(real: Installation) -> None:
    real.wait_idle()
    message = endless_body(type="response.create") | {"max_output_tokens": 6000}
    del message["stream"], message["max_tokens"]
    with open_socket(real.url, real.headers) as socket:
        socket.send(json.dumps(message))
        wait_for(lambda: real.running() == 1, "it runs")
    real.wait_idle()
