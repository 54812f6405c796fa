"""The engines' numbers for Prometheus, taken from their last reports when somebody asks."""

from typing import TYPE_CHECKING, Final

from prometheus_client import Gauge

from controlplane.gateway import metrics
from engine_pool.types import InstanceLoad

if TYPE_CHECKING:
    from controlplane.gateway.runtime import Runtime

_LABELS: Final = ["model_name", "instance"]
# Counted in the engines and only passed on, so each is set here like a gauge.
_GAUGES: Final = {
    name: Gauge(name, text, _LABELS)
    for name, text in {
        "vllm:num_requests_running": "Requests in the batch.",
        "vllm:num_requests_waiting": "Requests in the queue.",
        "vllm:kv_cache_usage_perc": "Share of the KV cache in use, 0 to 1.",
        "vllm:num_preemptions_total": "Preemptions since the engine's start.",
        "vllm:prompt_tokens_total": "Prompt tokens since the engine's start.",
        "vllm:generation_tokens_total": "Output tokens since the engine's start.",
        "ferry:requests_ended_total": "Requests that ended since the engine's start.",
    }.items()
}
_STATE: Final = Gauge("ferry:instances", "Instances of the pool by state.", ["state"])


def refresh(runtime: "Runtime") -> None:
    """Brings the numbers up to date."""
    view = runtime.client.view
    for gauge in (*_GAUGES.values(), _STATE):
        gauge.clear()
    for load in view.loads.values():
        for name, value in _values(load).items():
            _GAUGES[name].labels(runtime.model_name, load.instance).set(value)
    for status in view.statuses.values():
        _STATE.labels(status.state.value).inc()
    metrics.DEGRADED.labels("store").set(not view.store_connected)
    metrics.DEGRADED.labels("ray").set(
        runtime.client.ray is not None and not runtime.client.ray.is_joined
    )
    metrics.DEGRADED.labels("database").set(runtime.records.is_behind)


def _values(load: InstanceLoad) -> dict[str, float]:
    return {
        "vllm:num_requests_running": len(load.running),
        "vllm:num_requests_waiting": len(load.waiting),
        "vllm:kv_cache_usage_perc": load.used_tokens / max(1, load.capacity_tokens),
        "vllm:num_preemptions_total": load.preemptions_total,
        "vllm:prompt_tokens_total": load.prompt_tokens_total,
        "vllm:generation_tokens_total": load.output_tokens_total,
        "ferry:requests_ended_total": load.requests_ended_total,
    }
