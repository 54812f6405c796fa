"""What of a vLLM engine, and of a request, decides whether its KV can move, and where to.

The refusals name what was not built or cannot be shown to be right; a request that is refused
stays where it is and is served as ever.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migration.ports import KvShape

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

    from engine_pool.vllm_rank import RankFacts

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})


def why_engine_cannot_move(core: "EngineCore") -> str:
    """Returns which setting of an engine rules out moves of KV, "" when none does."""
    if what := why_engine_differs(core):
        return f"the engine uses {what}; its requests do not move"
    return _why_cache_cannot_move(core.scheduler)


def why_engine_differs(core: "EngineCore") -> str:
    """Returns which setting makes an engine keep more of a request than its tokens, KV and random
    state, or keep it elsewhere; "" when none does."""
    config = core.vllm_config
    parallel, model = config.parallel_config, config.model_config
    # Attributes of the scheduler are vLLM's internals, checked at start (vllm_adapter).
    scheduler: Any = core.scheduler
    reasons = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "data parallelism": parallel.data_parallel_size > 1,
        "context parallelism": scheduler.dcp_world_size > 1 or scheduler.pcp_world_size > 1,
        "speculative decoding": config.speculative_config is not None,
        "a KV or encoder cache connector": scheduler.connector is not None
        or scheduler.ec_connector is not None,
        "expert routing output": scheduler.aux_output_connector is not None,
        "an encoder": scheduler.is_encoder_decoder,
        "a diffusion model": model.is_diffusion,
        "a pooling model": model.runner_type == "pooling",
        "multi-dimensional positions": model.uses_mrope,
        "logits processors of one's own": bool(model.logits_processors),
    }
    return next((what for what, is_so in reasons.items() if is_so), "")


def _why_cache_cannot_move(scheduler: Any) -> str:
    """Blocks must stand for the tokens in their order, all of them, and nothing else."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    if len(managers) != 1:
        return f"the model has {len(managers)} kinds of KV cache; only one can move"
    if type(managers[0]) is not FullAttentionManager:
        return f"the KV cache is a {type(managers[0]).__name__}'s; only full attention can move"
    if scheduler.hash_block_size != scheduler.block_size or scheduler.needs_kv_cache_zeroing:
        return "the KV cache has mixed block sizes or formats; its requests do not move"
    return ""


def why_request_cannot_move(request: "Request") -> str:
    """Returns which feature of a request keeps it where it is, "" when none does."""
    feature = feature_of(request)
    return f"the request uses {feature} and stays where it is" if feature else ""


def feature_of(request: "Request") -> str:
    """Returns which feature of a request needs more than its tokens, KV and random state, ""
    when none does."""
    features = {
        "a LoRA adapter": request.lora_request is not None,
        "images or sound": bool(request.mm_features),
        "prompt embeddings": request.prompt_embeds is not None,
        "pooling": request.pooling_params is not None,
        "streamed input": request.resumable,
        "a KV transfer of its own": request.kv_transfer_params is not None,
    }
    return next((what for what, has_it in features.items() if has_it), "")


def read_shape(core: "EngineCore", facts: "RankFacts") -> KvShape:
    """`facts`: of all ranks together. Blocks that cannot move have no size and no layout."""
    import vllm

    config = core.vllm_config
    model = config.model_config
    scheduler: Any = core.scheduler
    return KvShape(
        engine=f"vllm {vllm.__version__} on {facts.device}",
        model=model_fingerprint(model.model, f"{model.dtype} {model.quantization}"),
        layers=facts.layers,
        block_size_tokens=scheduler.block_size,
        block_bytes=facts.block_bytes,
        dtype=f"{facts.dtype} {config.cache_config.cache_dtype}" if facts.dtype else "",
        layout=facts.layout,
        ranks=config.parallel_config.tensor_parallel_size,
    )


def model_fingerprint(model: str, numbers: str) -> str:
    """Hashes what tells two models apart without reading their weights: config.json, and names and
    sizes of the weight files. Where they lie does not matter.

    `model`: a folder, a weight file, or a hub id; `numbers`: how its weights are represented.
    """
    path = Path(model)
    digest = hashlib.sha256(numbers.encode())
    if path.is_dir():
        config = path / "config.json"
        digest.update(config.read_bytes() if config.is_file() else b"")
        weights = sorted(f for f in path.iterdir() if f.suffix in WEIGHT_SUFFIXES)
    else:
        weights = [path] if path.is_file() else []
        digest.update(b"" if weights else model.encode())
    for file in weights:
        digest.update(f"\0{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()[:16]
