"""The gateway's own numbers, for Prometheus. Names of vLLM where it has one; labels are bounded."""

from typing import Final

from django.conf import settings
from prometheus_client import Counter, Gauge, Histogram

from controlplane.gateway.models import RequestRecord, RequestStatus

TENANTS_MAX: Final = 200
"""Tenants with a label of their own in a process, the first that come: bounds the time series."""
_LATENCY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)
_TOKEN_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)

TTFT_S: Final = Histogram(
    "vllm:time_to_first_token_seconds",
    "From the request's arrival to its first token, at the gateway.",
    ["model_name", "priority_class"],
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
SLO_VIOLATIONS: Final = Counter(
    "ferry:slo_violations",
    "Requests that missed a target: ttft, tpot, or failed by our fault.",
    ["type", "priority_class"],
)
SLO_REQUESTS: Final = Counter(
    "ferry:slo_requests", "Requests that count for an SLO.", ["priority_class"]
)
QUEUE_S: Final = Histogram(
    "vllm:request_queue_time_seconds",
    "From the request's arrival to the engine's first step with it.",
    ["priority_class"],
    buckets=_LATENCY_S,
)
PREFILL_S: Final = Histogram(
    "vllm:request_prefill_time_seconds",
    "From the engine's first step with a request to its first token, at the gateway.",
    ["priority_class"],
    buckets=_LATENCY_S,
)
DECODE_S: Final = Histogram(
    "vllm:request_decode_time_seconds",
    "From the first token to the last, without waits for moves, at the gateway.",
    ["priority_class"],
    buckets=_LATENCY_S,
)
TENANT_TOKENS: Final = Counter(
    "ferry:tenant_tokens",
    "Tokens of requests that ended, by tenant; only with FERRY_TENANT_METRICS.",
    ["tenant", "kind"],
)
TENANT_REQUESTS: Final = Counter(
    "ferry:tenant_requests",
    "Requests that ended, by tenant and status; only with FERRY_TENANT_METRICS.",
    ["tenant", "status"],
)
TENANT_SLO_VIOLATIONS: Final = Counter(
    "ferry:tenant_slo_violations",
    "Requests that missed a target, by tenant; only with FERRY_TENANT_METRICS.",
    ["tenant", "type"],
)
OTHER_TENANTS: Final = "(other)"
"""Stands for all tenants beyond those that get a label of their own."""
REJECTIONS: Final = Counter("ferry:rejections", "Requests not taken, by reason.", ["reason"])
ADMISSION_S: Final = Histogram(
    "ferry:admission_seconds",
    "How long requests waited for their reservation in the store, taken or refused.",
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1, 2.5),
)
LEASES: Final = Gauge("ferry:leases", "Requests with a reservation that this web process renews.")
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

_labelled: set[str] = set()


def count_record(row: RequestRecord, tenant: str) -> None:
    """Counts a request that has ended, once; `tenant`: its slug."""
    label = row.priority_class
    for histogram, took_ms in (
        (QUEUE_S, row.queue_ms),
        (PREFILL_S, row.prefill_ms),
        (DECODE_S, row.decode_ms),
    ):
        if took_ms is not None:
            histogram.labels(label).observe(took_ms / 1000)
    missed = violations(row)
    if row.is_ttft_met is not None or row.is_tpot_met is not None:
        SLO_REQUESTS.labels(label).inc()
    for kind in missed:
        SLO_VIOLATIONS.labels(kind, label).inc()
    if settings.TENANT_METRICS:
        _count_tenant(row, _tenant_label(tenant), missed)


def violations(row: RequestRecord) -> list[str]:
    """Returns which targets a request missed; `failed` alone when it failed by our fault."""
    if row.is_ttft_met is not False and row.is_tpot_met is not False:
        return []
    if row.status == RequestStatus.FAILED:
        return ["failed"]
    met = {"ttft": row.is_ttft_met, "tpot": row.is_tpot_met}
    return [kind for kind, is_met in met.items() if is_met is False]


def _count_tenant(row: RequestRecord, tenant: str, missed: list[str]) -> None:
    TENANT_REQUESTS.labels(tenant, row.status).inc()
    TENANT_TOKENS.labels(tenant, "prompt").inc(row.prompt_tokens)
    TENANT_TOKENS.labels(tenant, "cached").inc(row.cached_tokens)
    TENANT_TOKENS.labels(tenant, "output").inc(row.output_tokens)
    for kind in missed:
        TENANT_SLO_VIOLATIONS.labels(tenant, kind).inc()


def _tenant_label(tenant: str) -> str:
    if tenant not in _labelled:
        if len(_labelled) >= TENANTS_MAX:
            return OTHER_TENANTS
        _labelled.add(tenant)
    return tenant
