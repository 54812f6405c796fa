"""The end of a call in this process, whatever it is: engine, reservation, counts, record."""

import time
from typing import TYPE_CHECKING, Final

from controlplane.gateway import limits, metrics
from controlplane.gateway.call import Call
from controlplane.gateway.errors import ApiError
from controlplane.gateway.left_calls import LeftEnd
from engine_pool.errors import ServerStopping, StreamGone, StreamSuperseded

if TYPE_CHECKING:
    from controlplane.gateway.completions import Completion
    from controlplane.gateway.frontend.serving import FrontEnd

_GOES_ON: Final = (StreamSuperseded.code, ServerStopping.code)
"""Errors that end a connection, but not its request."""


class Ending:
    """How a call ends; what is not said otherwise is that its client left. Closed once."""

    def __init__(self, front: "FrontEnd", completion: "Completion") -> None:
        self.outcome = "cancelled"
        self._error_code = ""
        self._is_our_fault = True
        self._runtime = completion.runtime
        self._front = front
        self._completion = completion
        self._is_closed = False
        metrics.OPEN.inc()

    def fail(self, error: ApiError) -> None:
        """Notes why it failed."""
        self.outcome, self._error_code = "failed", error.code or str(error.status)
        self._is_our_fault = error.status >= 500

    def close(self) -> None:
        """Stops the engine, or lets it go on for a while; counts; settles; writes the record."""
        if self._is_closed:
            return
        self._is_closed = True
        metrics.OPEN.dec()
        completion, call = self._completion, self._completion.call
        may_come_back = completion.detach_s > 0 and call.is_accepted
        is_left = self.outcome == "cancelled" and may_come_back
        if is_left:
            self.outcome = "detached"
        limits.settle(completion, self.outcome, self._error_code)
        if is_left:
            left = self._front.llm.detach(call, self._end_left)
            self._runtime.abort_later(left, completion.detach_s)
        else:
            self._front.llm.end(call)
            self._runtime.expire(call.request_id)
        _count(call, self.outcome)
        if not is_left and not self._goes_on():
            self._record(self.outcome)

    def _end_left(self, end: LeftEnd) -> None:
        """Takes the end of a call whose client had left and that nobody has resumed."""
        if end.error is not None:
            self.fail(self._front.error_of(end.error))
        self._runtime.expire(self._completion.call.request_id)
        limits.settle_left(self._completion)
        self._record(end.outcome)

    def _goes_on(self) -> bool:
        """Says whether somebody else will know how the request ended: another connection that has
        resumed it or will, or the worker (usage/unbilled.py)."""
        call = self._completion.call
        if call.is_resumed and self._error_code == StreamGone.code:
            return True
        return call.is_accepted and self._error_code in _GOES_ON

    def _record(self, outcome: str) -> None:
        """Adds the request's one row."""
        if not self._completion.call.is_accepted:
            # What no engine has taken has used nothing, and costs nothing.
            self._completion.call.prompt_tokens = 0
        self._runtime.records.add(
            self._completion.call,
            outcome,
            self._error_code,
            is_our_fault=self._is_our_fault,
            is_partial=outcome not in ("completed", "detached"),
        )


def _count(call: Call, outcome: str) -> None:
    if call.is_resumed:
        # Its times are those of a replay.
        metrics.REQUESTS.labels(call.endpoint, f"resumed_{outcome}").inc()
        return
    metrics.REQUESTS.labels(call.endpoint, outcome).inc()
    label = call.priority_class.value
    metrics.E2E_S.labels(label).observe(time.monotonic() - call.arrived_s)
    if call.first_token_s is None or call.last_token_s is None:
        return
    metrics.TTFT_S.labels(call.model, label).observe(call.first_token_s - call.arrived_s)
    gaps = max(call.choice_tokens.values(), default=0) - 1
    if gaps > 0:
        metrics.TPOT_S.labels(label).observe((call.last_token_s - call.first_token_s) / gaps)
