"""An engine that does exactly what a test says: one token a request and step, from memory."""

import threading
from collections.abc import Sequence

from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineLoad, EngineRequest, StepOutput
from engine_pool.types import RequestId, RequestLoad


class FakeEngine:
    """Implements ports.Engine. `gate` closed stops the steps; `batches` notes who was in each
    step."""

    max_model_len = 1000

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.is_open = threading.Event()
        self.requests: dict[RequestId, EngineRequest] = {}
        self.given: dict[RequestId, int] = {}
        self.batches: list[list[str]] = []
        self.aborted: list[str] = []
        self.breaks_with: Exception | None = None
        self.is_closed = False

    def add(self, request: EngineRequest) -> None:
        if request.prompt_tokens > self.max_model_len:
            raise EngineRefused("too long")
        self.requests[request.request_id] = request
        self.given[request.request_id] = 0

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        for request_id in request_ids:
            if self.requests.pop(request_id, None):
                self.aborted.append(request_id)

    def has_work(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[StepOutput]:
        if not self.is_open.is_set():
            self.gate.acquire()
        if self.breaks_with is not None:
            raise self.breaks_with
        self.batches.append(list(self.requests))
        outputs = []
        for request_id, request in list(self.requests.items()):
            self.given[request_id] += 1
            is_last = self.given[request_id] >= request.max_tokens
            token = self.given[request_id]
            outputs.append(StepOutput(request_id, (token,), "length" if is_last else None))
            if is_last:
                del self.requests[request_id]
        return outputs

    def load(self) -> EngineLoad:
        batch = tuple(
            RequestLoad(i, r.priority_class, 16, r.prompt_tokens, self.given[i])
            for i, r in self.requests.items()
        )
        return EngineLoad(1600, 16 * len(batch), 16, 8, batch, (), 0)

    def close(self) -> None:
        self.is_closed = True
