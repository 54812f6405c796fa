"""Makes the plane that moves one rank's KV blocks, in whichever process the rank is."""

from engine_pool.config import PoolConfig
from engine_pool.vllm_kv import VllmKv
from migration.kv_plane import LocalKvPlane
from migration.remote_plane import PlaneTerms

MIB = 1024 * 1024


def plane_terms(config: PoolConfig, host: str) -> PlaneTerms:
    """Returns the terms of an engine's planes. `host`: this host's address, which peers reach."""
    return PlaneTerms(
        host=host,
        timeout_s=config.migration_stage_timeout_s,
        chunk_bytes=int(config.migration_chunk_mib * MIB),
        copy_share=config.migration_copy_share,
    )


def open_local_plane(kv: VllmKv, terms: PlaneTerms) -> LocalKvPlane:
    """Opens the plane of the KV memory of this process."""
    return LocalKvPlane(
        kv,
        host=terms.host,
        timeout_s=terms.timeout_s,
        chunk_bytes=max(kv.block_bytes, terms.chunk_bytes),
        copy_share=1.0 if kv.is_on_gpu else terms.copy_share,
        backend="nccl" if kv.is_on_gpu else "gloo",
        device=kv.device,
    )
