"""Pairs of torch.distributed: both ends live in this process, each used by its own thread."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from migration.channel_terms import ChannelOffer, ChannelTerms
from migration.channels import Channel, join_channel, offer_channel
from migration.ports import TransferFailed

TERMS = ChannelTerms("127.0.0.1", "gloo", 20.0, 4096, torch.device("cpu"))
HASTY = replace(TERMS, timeout_s=0.3)
ANSWER_S = 120.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def connected(terms: ChannelTerms = TERMS) -> tuple[Channel, Channel]:
    offer, offering = offer_channel(terms)
    joining = join_channel(ChannelOffer.from_text(offer.as_text()), terms)
    return offering.result(ANSWER_S), joining.result(ANSWER_S)


def some_bytes(count: int = 8) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 131_072, 10_000_000])
def test_a_tensor_arrives_bit_identical_in_both_directions(threads: ThreadPoolExecutor, count: int):
    ends = connected()
    for sender, receiver in (ends, ends[::-1]):
        sent, received = some_bytes(count), torch.zeros(count, dtype=torch.uint8)
        sending = threads.submit(sender.send, sent, 1)
        receiver.receive(received, 1)
        receiver.answer(1)
        sending.result(ANSWER_S)
        assert torch.equal(sent, received)


def test_a_send_is_over_when_it_is_answered(threads: ThreadPoolExecutor):
    left, right = connected()
    sending = threads.submit(left.send, some_bytes(), 1)
    right.receive(some_bytes(), 1)
    assert not sending.done()
    right.answer(1)
    sending.result(ANSWER_S)


def test_channels_of_the_same_two_processes_do_not_mix(threads: ThreadPoolExecutor):
    pairs = [connected() for _ in range(3)]
    received = [torch.zeros(64, dtype=torch.uint8) for _ in pairs]
    receiving = [
        threads.submit(right.receive, tensor, 1)
        for (_, right), tensor in zip(pairs, received, strict=True)
    ]
    for number, (left, right) in reversed(list(enumerate(pairs))):
        right.answer(1)
        left.send(torch.full((64,), number, dtype=torch.uint8), 1)
    for number, future in enumerate(receiving):
        future.result(ANSWER_S)
        assert received[number].unique().tolist() == [number]


@pytest.mark.parametrize("closing", [0, 1], ids=["its own end", "the other end"])
def test_closing_ends_a_send_that_waits_for_its_answer(threads: ThreadPoolExecutor, closing: int):
    ends = connected()
    waiting = threads.submit(ends[0].send, some_bytes(), 1)
    ends[1].receive(some_bytes(), 1)
    ends[closing].close()
    with pytest.raises(TransferFailed, match="sending failed"):
        waiting.result(ANSWER_S)


@pytest.mark.parametrize("round_", range(20))
def test_a_send_to_a_peer_that_is_just_leaving_fails_at_once(
    threads: ThreadPoolExecutor, round_: int
):
    left, right = connected(replace(TERMS, timeout_s=10 * ANSWER_S))
    receiving = threads.submit(right.receive, some_bytes(), 1)
    closing = threads.submit(right.close)
    with pytest.raises(TransferFailed):
        left.send(some_bytes(), 1)
    closing.result(ANSWER_S)
    with suppress(TransferFailed):
        receiving.result(ANSWER_S)


def test_a_closed_channel_refuses():
    left, right = connected()
    left.close()
    left.close()
    for end in (left, right):
        with pytest.raises(TransferFailed):
            end.send(some_bytes(), 1)


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(lambda end: end.receive(some_bytes(), 1), id="receive"),
        pytest.param(lambda end: end.send(some_bytes(), 1), id="send"),
    ],
)
def test_a_peer_that_does_nothing_is_waited_for_no_longer_than_agreed(
    wait: Callable[[Channel], None],
):
    left, right = connected(HASTY)
    with pytest.raises(TransferFailed):
        wait(left)
    with pytest.raises(TransferFailed):
        right.receive(some_bytes(), 2)


def test_two_ends_that_disagree_on_a_message_fail_instead_of_taking_it(
    threads: ThreadPoolExecutor,
):
    left, right = connected(HASTY)
    sending = threads.submit(left.send, some_bytes(800), 1)
    with pytest.raises(TransferFailed):
        right.receive(some_bytes(), 2)
    with pytest.raises(TransferFailed):
        sending.result(ANSWER_S)


def test_an_offer_that_nobody_takes_up_fails():
    _, offering = offer_channel(HASTY)
    with pytest.raises(TransferFailed, match="not connected"):
        offering.result(ANSWER_S)


def test_garbage_on_an_offers_port_does_not_keep_the_peer_out():
    offer, offering = offer_channel(TERMS)
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", bytes(5000), b"\xff" * 5000, b""):
        with socket.create_connection((offer.host, offer.port)) as stranger:
            stranger.sendall(greeting)
    join_channel(offer, TERMS).result(ANSWER_S)
    offering.result(ANSWER_S)


def test_a_joiner_is_told_when_nobody_is_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    offer = ChannelOffer("127.0.0.1", port, "name", "gloo", TERMS.chunk_bytes)
    with pytest.raises(TransferFailed, match="not connected"):
        join_channel(offer, HASTY).result(ANSWER_S)


def test_a_channel_that_is_given_up_while_it_connects_is_closed():
    offer, offering = offer_channel(TERMS)
    assert offering.cancel()
    joined = join_channel(offer, TERMS).result(ANSWER_S)
    with pytest.raises(TransferFailed):
        joined.receive(some_bytes(), 1)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"host": "h"}', "\x00", '{"a": 1}'], ids=lambda text: repr(text)
)
def test_what_is_not_an_offer_is_refused(text: str):
    with pytest.raises(TransferFailed, match="not an offer"):
        ChannelOffer.from_text(text)


def test_ends_that_cut_differently_do_not_connect():
    offer = ChannelOffer("127.0.0.1", 1, "name", "gloo", TERMS.chunk_bytes + 1)
    with pytest.raises(TransferFailed, match="4097 bytes by gloo, this one 4096"):
        join_channel(offer, TERMS)
