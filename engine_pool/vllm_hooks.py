"""The parts of vLLM that are used here, looked for when an engine starts.

They are internal API. Another version may have changed any of them, and a start that fails and says
so is better than an answer that goes wrong later.
"""

import importlib
from typing import TYPE_CHECKING, Any

from engine_pool.errors import EngineFailed

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

VLLM_VERSION = "0.32."
"""The internal API was read in this version; another one needs reading again."""

_HOOKS = (
    ("vllm.engine.arg_utils", "EngineArgs.create_engine_config"),
    ("vllm.v1.engine.core", "EngineCore.preprocess_add_request"),
    ("vllm.v1.engine.core", "EngineCore.add_request"),
    ("vllm.v1.engine.core", "EngineCore.abort_requests"),
    ("vllm.v1.engine.core", "EngineCore.post_step"),
    ("vllm.v1.engine.core", "EngineCore.shutdown"),
    ("vllm.v1.engine", "EngineCoreRequest"),
    ("vllm.v1.executor", "Executor.get_class"),
    ("vllm.v1.serial_utils", "MsgpackDecoder.decode"),
    ("vllm.v1.core.block_pool", "BlockPool.get_num_free_blocks"),
    ("vllm.v1.core.kv_cache_coordinator", "KVCacheCoordinator.get_blocks"),
    # Moves: requests that leave and come while they run.
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.allocate_slots"),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.cache_blocks"),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.free"),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.get_block_ids"),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.get_computed_blocks"),
    ("vllm.v1.core.sched.request_queue", "RequestQueue.remove_requests"),
    ("vllm.v1.core.sched.scheduler", "Scheduler._enqueue_waiting_request"),
    ("vllm.v1.core.sched.scheduler", "Scheduler._inflight_prefill_reserved_blocks"),
    # Order of the queue, and preemption for requests that wait.
    ("vllm.v1.core.sched.request_queue", "PriorityRequestQueue"),
    ("vllm.v1.core.sched.scheduler", "Scheduler._preempt_request"),
    ("vllm.v1.core.single_type_kv_cache_manager", "FullAttentionManager"),
    ("vllm.v1.request", "Request.append_output_token_ids"),
    ("vllm.v1.request", "RequestStatus.PREEMPTED"),
    ("vllm.v1.structured_output", "StructuredOutputManager.accept_tokens"),
    ("vllm.v1.structured_output.request", "StructuredOutputRequest.is_grammar_ready"),
    ("vllm.v1.worker.gpu_input_batch", "CachedRequestState"),
    ("vllm.v1.worker.gpu_input_batch", "InputBatch.remove_request"),
    ("vllm.sampling_params", "SamplingType.RANDOM_SEED"),
)

_PARTS = (
    "batch_queue",
    "scheduler.connector",
    "scheduler.deferred_frees",
    "scheduler.deferred_waiting",
    "scheduler.defer_block_free",
    "scheduler.finished_req_ids",
    "scheduler.hash_block_size",
    "scheduler.kv_cache_config.num_blocks",
    "scheduler.kv_cache_manager.coordinator.single_type_managers",
    "scheduler.kv_cache_manager.empty_kv_cache_blocks",
    "scheduler.kv_cache_manager.watermark_blocks",
    "scheduler.kv_holding_waiting",
    "scheduler.max_num_active_reqs",
    "scheduler.max_num_scheduled_tokens",
    "scheduler.needs_kv_cache_zeroing",
    "scheduler.prev_step_scheduled_req_ids",
    "scheduler.requests",
    "scheduler.running",
    "scheduler.scheduler_config.long_prefill_token_threshold",
    "scheduler.use_v2_model_runner",
    "scheduler.waiting",
    "structured_output_manager",
)
"""Attributes that exist on an engine only."""

_REQUEST_PARTS = (
    "arrival_time",
    "drop_stale_output",
    "is_prefill_chunk",
    "num_output_placeholders",
    "num_stale_output_tokens",
    "priority",
)

_RUNNER_PARTS = ("attn_groups", "device", "kv_caches")
_V1_RUNNER_PARTS = (
    *_RUNNER_PARTS,
    "input_batch.generators",
    "num_prompt_logprobs",
    "requests",
)


def check_version() -> None:
    """Raises: EngineFailed naming what this vLLM lacks; nothing is loaded yet."""
    import vllm

    if not vllm.__version__.startswith(VLLM_VERSION):
        raise EngineFailed(
            f"vLLM {vllm.__version__} is installed; this version of Ferry needs {VLLM_VERSION}x"
        )
    for module_name, path in _HOOKS:
        _find(importlib.import_module(module_name), path, module_name)


def check_parts(core: "EngineCore") -> None:
    """Raises: EngineFailed naming what this engine lacks."""
    for path in _PARTS:
        _find(core, path, "EngineCore")


def check_request(request: "Request") -> None:
    """Raises: EngineFailed naming what a request lacks."""
    for path in _REQUEST_PARTS:
        _find(request, path, "Request")


def check_runner(runner: Any, *, is_v2: bool) -> None:
    """Raises: EngineFailed naming what a worker's model runner lacks."""
    for path in _RUNNER_PARTS if is_v2 else _V1_RUNNER_PARTS:
        _find(runner, path, "GPUModelRunner")


def check_executor(core: "EngineCore") -> None:
    """Raises: EngineFailed naming what an engine with worker processes lacks."""
    for path in ("collective_rpc", "workers"):
        _find(core.model_executor, path, "MultiprocExecutor")


def _find(found: object, path: str, owner: str) -> None:
    import vllm

    for name in path.split("."):
        if not hasattr(found, name):
            raise EngineFailed(f"vLLM {vllm.__version__} has no {owner}.{path}")
        found = getattr(found, name)
