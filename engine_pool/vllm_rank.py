"""What one rank of a vLLM engine has: its KV memory, and what its model runner says of it.

A rank is where a shard of the model runs: this very process, or one of the worker processes of an
engine with tensor parallelism.
"""

import contextlib
import ctypes
import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_pool.errors import EngineFailed
from engine_pool.vllm_generators import make_draws_revocable
from engine_pool.vllm_hooks import check_runner
from engine_pool.vllm_kv import VllmKv


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What the KV memory of one rank, or of all together, is like."""

    device: str
    """cpu, cuda, ..."""
    why_not: str = ""
    """Why its blocks cannot move; nothing more is known then. "": they can."""
    layers: int = 0
    block_bytes: int = 0
    dtype: str = ""
    layout: str = ""


def prepare_rank(runner: Any, blocks: int, *, is_v2: bool) -> tuple[RankFacts, VllmKv | None]:
    """Prepares a model runner that has run nothing yet and finds its KV memory; None when its
    blocks cannot move.

    `blocks`: how many the scheduler has. Raises: EngineFailed when this vLLM lacks what is used.
    """
    check_runner(runner, is_v2=is_v2)
    device: str = runner.device.type
    if device == "cpu" and not is_v2:
        make_draws_revocable(runner)
    try:
        kv = VllmKv(runner.kv_caches, blocks)
    except EngineFailed as error:
        # Such an engine serves all the same.
        return RankFacts(device, str(error)), None
    layout = _layout(runner, kv)
    return RankFacts(device, "", kv.layers, kv.block_bytes, str(kv.dtype), layout), kv


def all_ranks(ranks: Sequence[RankFacts]) -> RankFacts:
    """Returns what all ranks of an engine have together."""
    first = ranks[0]
    unfit = next((facts for facts in ranks if facts.why_not), None)
    if unfit is not None:
        return unfit
    if len(set(ranks)) > 1:
        return RankFacts(first.device, "the KV caches of the engine's ranks differ")
    return replace(first, block_bytes=first.block_bytes * len(ranks))


def _layout(runner: Any, kv: VllmKv) -> str:
    """The backend is part of it: on CPU each instruction set packs a block in its own way."""
    group = runner.attn_groups[0][0]
    kind = getattr(group.get_metadata_builder(), "isa", "")
    shape = "x".join(map(str, kv.block_shape))
    return f"layers, blocks, {shape} {group.backend.get_name()} {kind}".rstrip()


def return_freed_memory() -> None:
    """Gives what the start has used and freed back to the system: about 110 MB."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
