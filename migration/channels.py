"""Carries tensors between exactly two processes: torch.distributed, point to point.

A channel is a process group of two that belongs to no global group, so a process may have many, to
different peers and several to the same one. The offering process hosts a TCPStore, where the two
find each other; the offer says where. Gloo's pair of sockets is always there. On GPUs the tensors
go by NCCL instead, and gloo carries the word that a send has been issued.

A wait ends after the channel's timeout, and at once when the peer's process dies or either end
closes. A broken channel stays broken: make a new one. Both sockets listen on the given host address
only; what comes through is not encrypted, so the hosts must trust the network between them.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore, Work

from migration.channel_terms import ChannelOffer, ChannelTerms
from migration.nccl import NcclPair
from migration.ports import TransferFailed

OFFERING_RANK, JOINING_RANK = 0, 1

BREAKING_WAIT = timedelta(milliseconds=1)
"""Gloo's shortest wait: it counts in milliseconds, and 0 means its default."""

LAST_TAG = 0x7FFF
"""Tags tell messages apart and come round again: gloo keeps a little memory for each."""

ANSWER_TAG = LAST_TAG + 1
"""Added to a message's tag makes its answer's."""

BREAKING_TAG = ANSWER_TAG + LAST_TAG + 1
"""Nothing is ever sent with it."""


class PairGroup(Protocol):
    """What is used of a torch backend of two ranks; torch's own stubs leave it out."""

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work: ...

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work: ...


class Channel:
    """One end of a connected pair. One thread sends and receives; any thread closes."""

    def __init__(self, group: PairGroup, nccl: NcclPair | None, rank: int, timeout_s: float):
        self._group = group
        self._nccl = nccl
        self._peer = 1 - rank
        self._timeout = timedelta(seconds=timeout_s)
        self._nothing = torch.zeros(1, dtype=torch.uint8)
        self._answered = torch.zeros(1, dtype=torch.uint8)
        self._answering: Work | None = None

    def send(self, tensor: torch.Tensor, tag: int) -> None:
        """Sends a contiguous uint8 tensor and waits for the peer's `answer`.

        Raises:
            TransferFailed: the channel is broken now.
        """
        try:
            # By NCCL gloo carries the word that the send has been issued.
            issued = None if self._nccl is None else self._nccl.begin_send(tensor)
            sending = self._group.send(
                [tensor if issued is None else self._nothing], self._peer, tag
            )
            answer = self._group.recv([self._answered], self._peer, ANSWER_TAG + tag)
            # In this order: gloo may forget a send whose peer leaves that moment, until it times
            # out; a receive fails at once.
            answer.wait(self._timeout)
            sending.wait(self._timeout)
            if self._nccl is not None and issued is not None:
                self._nccl.finish(issued)
        except RuntimeError as error:
            raise TransferFailed(f"sending failed: {_in_short(error)}") from error

    def receive(self, tensor: torch.Tensor, tag: int) -> None:
        """Receives exactly what the peer sends with the same tag.

        Raises:
            TransferFailed: the channel is broken now.
        """
        try:
            word = tensor if self._nccl is None else self._nothing
            self._group.recv([word], self._peer, tag).wait(self._timeout)
            if self._nccl is not None:
                self._nccl.finish(self._nccl.begin_receive(tensor))
        except RuntimeError as error:
            raise TransferFailed(f"receiving failed: {_in_short(error)}") from error

    def answer(self, tag: int) -> None:
        """Begins to tell the sender of what came with this tag that it may go on.

        Raises:
            TransferFailed: the channel is broken now.
        """
        try:
            # Gloo forgets a send whose Work is dropped before it has gone out.
            if self._answering is not None:
                self._answering.wait(self._timeout)
            self._answering = self._group.send([self._nothing], self._peer, ANSWER_TAG + tag)
        except RuntimeError as error:
            raise TransferFailed(f"answering failed: {_in_short(error)}") from error

    def close(self) -> None:
        """Breaks the channel: a send or receive in another thread and the peer's fail at once."""
        # Gloo has no call for it, but when one wait of a group times out it closes the group's
        # sockets and ends all its waits. So let one time out.
        scrap = torch.empty(1, dtype=torch.uint8)
        with contextlib.suppress(RuntimeError):
            self._group.recv([scrap], self._peer, BREAKING_TAG).wait(BREAKING_WAIT)
        if self._nccl is not None:
            self._nccl.abort()


def offer_channel(terms: ChannelTerms) -> tuple[ChannelOffer, "Future[Channel]"]:
    """Hosts a store for one channel; the future waits for the other process.

    Raises:
        OSError: this host does not have that address.
        RuntimeError: torch could not host a store.
    """
    family = socket.getaddrinfo(terms.host, 0, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((terms.host, 0), family=family)
    port = listening.getsockname()[1]
    store = TCPStore(
        terms.host,
        port,
        is_master=True,
        timeout=timedelta(seconds=terms.timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    offer = ChannelOffer(terms.host, port, secrets.token_hex(8), terms.backend, terms.chunk_bytes)
    return offer, _in_own_thread(lambda: _connect(store, offer, terms, OFFERING_RANK))


def join_channel(offer: ChannelOffer, terms: ChannelTerms) -> "Future[Channel]":
    """Connects to the process that made an offer.

    Raises:
        TransferFailed: the two do not fit.
    """
    if (offer.backend, offer.chunk_bytes) != (terms.backend, terms.chunk_bytes):
        raise TransferFailed(
            f"the other end sends chunks of {offer.chunk_bytes} bytes by {offer.backend}, "
            f"this one {terms.chunk_bytes} bytes by {terms.backend}"
        )

    def join() -> Channel:
        store = TCPStore(
            offer.host,
            offer.port,
            is_master=False,
            timeout=timedelta(seconds=terms.timeout_s),
            wait_for_workers=False,
        )
        return _connect(store, offer, terms, JOINING_RANK)

    return _in_own_thread(join)


def _connect(store: TCPStore, offer: ChannelOffer, terms: ChannelTerms, rank: int) -> Channel:
    group = _gloo_pair(PrefixStore(offer.name, store), rank, terms)
    nccl = None
    if offer.backend == "nccl":
        nccl = NcclPair(
            PrefixStore(offer.name + "-nccl", store), rank, terms.device, terms.timeout_s
        )
    return Channel(group, nccl, rank, terms.timeout_s)


def _gloo_pair(store: PrefixStore, rank: int, terms: ChannelTerms) -> PairGroup:
    gloo = vars(distributed)["ProcessGroupGloo"]  # its options are not in torch's stubs
    options = gloo._Options()
    # A device of its own binds the address and is one thread; the default one asks DNS.
    options._devices = [gloo.create_device(hostname=terms.host)]
    options._threads = 1  # for collectives, of which there are none; 0 is refused
    options._timeout = timedelta(seconds=terms.timeout_s)
    return cast(PairGroup, gloo(store, rank, 2, options))


def _in_own_thread(connect: Callable[[], Channel]) -> "Future[Channel]":
    """Connects in a thread that may be forgotten: a TCPStore whose host is stopped (SIGSTOP) waits
    without end. Whoever does not want the channel any more cancels the future."""
    future: Future[Channel] = Future()

    def run() -> None:
        try:
            channel = connect()
        except (RuntimeError, OSError, ValueError) as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(TransferFailed(f"not connected: {_in_short(error)}"))
            return
        if future.set_running_or_notify_cancel():
            future.set_result(channel)
        else:
            channel.close()

    threading.Thread(target=run, name="ferry-kv-connect", daemon=True).start()
    return future


def _in_short(error: BaseException) -> str:
    """Returns the first line of an error without the place in torch's sources."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line.rpartition("] ")[2][:300] if line.startswith("[/") else line[:300]
