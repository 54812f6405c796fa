"""Where a request's time went. Pure.

queue: arrival to the engine's first step with it (the engine says it in its first frame);
prefill: from there to the first token; decode: first to last token without the waits for moves;
migration: those waits. What is left of the duration is the way to the client.
"""

from dataclasses import dataclass

from controlplane.gateway.call import Call


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds; None: it did not come so far, or nobody saw it."""

    ttft_ms: float | None
    tpot_ms: float | None
    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    migration_ms: float


def times_of(call: Call) -> Times:
    """Returns a call's times as its gateway saw them.

    Of a resumed call, whose tokens came from the log, only what the engine said is known: TTFT
    lacks the way to the gateway, TPOT and decode are None.
    """
    ttft_ms = _ttft_ms(call)
    queue_ms = call.queue_ms
    if queue_ms is not None and ttft_ms is not None:
        # The two clocks may differ by some milliseconds; the parts must not exceed the whole.
        queue_ms = min(max(0.0, queue_ms), ttft_ms)
    prefill_ms = None if queue_ms is None or ttft_ms is None else ttft_ms - queue_ms
    tpot_ms = decode_ms = None
    if not call.is_resumed and call.first_token_s is not None and call.last_token_s is not None:
        took_ms = (call.last_token_s - call.first_token_s) * 1000
        gaps = max(call.choice_tokens.values(), default=0) - 1
        tpot_ms = took_ms / gaps if gaps > 0 else None
        decode_ms = max(0.0, took_ms - call.migration_ms)
    return Times(ttft_ms, tpot_ms, queue_ms, prefill_ms, decode_ms, call.migration_ms)


def _ttft_ms(call: Call) -> float | None:
    if call.is_resumed:
        return call.engine_ttft_ms
    if call.first_token_s is None:
        return None
    return (call.first_token_s - call.arrived_s) * 1000
