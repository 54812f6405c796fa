"""The gateway's own numbers, for Prometheus. Names of vLLM where it has one; labels are bounded."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_LATENCY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)
_TOKEN_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)

TTFT_S: Final = Histogram(
    "vllm:time_to_first_token_seconds",
    "From the request's arrival to its first token, at the gateway.",
    ["priority_class"],
    buckets=_LATENCY_S,
)
INTER_TOKEN_S: Final = Histogram(
    "vllm:inter_token_latency_seconds",
    "Between two tokens of a request, at the gateway.",
    buckets=_TOKEN_S,
)
TPOT_S: Final = Histogram(
    "vllm:request_time_per_output_token_seconds",
    "Mean time per output token after the first, at the gateway.",
    ["priority_class"],
    buckets=_TOKEN_S,
)
E2E_S: Final = Histogram(
    "vllm:e2e_request_latency_seconds",
    "From the request's arrival to its end, at the gateway.",
    ["priority_class"],
    buckets=_LATENCY_S,
)
REQUESTS: Final = Counter(
    "ferry:requests", "Requests that ended, by endpoint and outcome.", ["endpoint", "outcome"]
)
REJECTIONS: Final = Counter("ferry:rejections", "Requests not taken, by reason.", ["reason"])
OPEN: Final = Gauge("ferry:open_requests", "Requests under way in this web process.")
GATEWAY_WAIT_S: Final = Histogram(
    "ferry:gateway_wait_seconds",
    "How long requests waited in this web process until an instance had room (late binding).",
    ["priority_class"],
    buckets=_LATENCY_S,
)
MOVED_STREAMS: Final = Counter(
    "ferry:moved_streams", "Moves of requests whose tokens were read by this web process."
)
MOVED_GAP_S: Final = Histogram(
    "ferry:moved_stream_gap_seconds",
    "At a move, between the last token from the source and the first from the destination, as this"
    " web process saw them.",
    buckets=_TOKEN_S,
)
