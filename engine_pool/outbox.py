"""What a web process sends to one engine: new requests and aborts, at most one call under way.

What arrives during a call goes with the next one. So a burst of requests reaches the engine as one
batch and is prefilled together, an abort never overtakes its own request, and a token never costs a
call.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine_pool.errors import InstanceLost, PoolError
from engine_pool.ports import EngineRequest

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode

Refusals = dict[str, str]
"""request id -> reason."""


class EngineGate(Protocol):
    """The way to engine actors. Both raise InstanceLost when the actor does not answer in time."""

    async def submit(self, actor: str, blob: bytes) -> Refusals:
        """Hands over msgpack of a list of EngineRequests; returns those that were refused."""

    async def abort(self, actor: str, request_ids: Sequence[str]) -> None:
        """Ends requests; unknown ids are ignored."""


class Outbox:
    """Of one engine actor; lives as long as the web process knows the actor."""

    def __init__(self, gate: EngineGate, actor: str) -> None:
        self._gate = gate
        self._actor = actor
        self._requests: dict[str, tuple[EngineRequest, asyncio.Future[str | None]]] = {}
        self._aborts: list[str] = []
        self._sender: asyncio.Task[None] | None = None

    async def submit(self, requests: Sequence[EngineRequest]) -> Refusals:
        """Returns what the engine refused, once it has answered. Raises: InstanceLost."""
        loop = asyncio.get_running_loop()
        answers = {r.request_id: loop.create_future() for r in requests}
        for request in requests:
            self._requests[request.request_id] = (request, answers[request.request_id])
        self._wake()
        reasons = await asyncio.gather(*answers.values())
        return {i: why for i, why in zip(answers, reasons, strict=True) if why is not None}

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """Ends requests soon; returns those that had not been sent yet, and now will not be."""
        unsent = [i for i in request_ids if i in self._requests]
        for request_id in unsent:
            _, answer = self._requests.pop(request_id)
            answer.cancel()
        self._aborts += [i for i in request_ids if i not in unsent]
        if self._aborts:
            self._wake()
        return unsent

    @property
    def is_idle(self) -> bool:
        """Nothing waits and no call is under way."""
        return self._sender is None or self._sender.done()

    async def close(self) -> None:
        """Sends what waits and ends."""
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)

    def _wake(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name=f"outbox of {self._actor}")

    async def _send(self) -> None:
        while self._requests or self._aborts:
            # One turn of the loop, so that all requests of a burst are in the first call too.
            await asyncio.sleep(0)
            if self._requests:
                await self._send_requests()
            if self._aborts:
                await self._send_aborts()

    async def _send_requests(self) -> None:
        sent, self._requests = self._requests, {}
        if not sent:
            return
        blob = _encode([request for request, _ in sent.values()])
        try:
            refusals = await self._gate.submit(self._actor, blob)
        except PoolError as error:
            for _, answer in sent.values():
                if not answer.done():
                    answer.set_exception(InstanceLost(str(error)))
            return
        for request_id, (_, answer) in sent.items():
            if not answer.done():
                answer.set_result(refusals.get(request_id))

    async def _send_aborts(self) -> None:
        ids, self._aborts = self._aborts, []
        try:
            await self._gate.abort(self._actor, ids)
        except PoolError as error:
            # The engine is dead or hangs; its requests die with it, or nobody reads them.
            logger.warning("could not abort %d requests at %s: %s", len(ids), self._actor, error)
