"""What an engine actor is told at its start. Made by the launcher, sent once, never changed."""

import hashlib
from dataclasses import dataclass, fields

from engine_pool.config import PoolConfig
from engine_pool.types import InstanceName


@dataclass(frozen=True, slots=True)
class SampleText:
    """The text that simulated engines speak, as the served model's tokens."""

    sentences: tuple[tuple[int, ...], ...]
    """Token ids of one sentence each, with the space before it; a simulated request begins and ends
    at a sentence."""
    openings: tuple[tuple[int, ...], ...]
    """The same sentences without that space, for the beginning of an answer."""
    eos_token_id: int


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One incarnation of one instance."""

    instance: InstanceName
    incarnation: str
    config: PoolConfig
    model_path: str
    """A folder with a Hugging Face checkpoint, or a hub id."""
    threads: int
    """CPU threads for the model's forward pass; engines on one machine share its cores."""
    max_model_len: int
    """Tokens: longest prompt plus output of a simulated engine; 0: the real engine finds out
    itself."""
    sample_text: SampleText | None = None
    """Simulated engines only."""
    launched_unix_s: float = 0.0
    """When the pool made it."""
    told_fingerprint: str = ""
    """Its fingerprint as the pool process reckons it: where the code was replaced beneath that, an
    engine would reckon another one, and a rolling update would never end."""

    @property
    def installation(self) -> str:
        """Tells engines of two installations apart that share one Ray cluster."""
        return installation_of(self.config.redis_url)

    @property
    def fingerprint(self) -> str:
        """Changes with what an engine is started with: one of another is replaced by a rolling
        update. Requests move between the two where their KV caches are alike."""
        c = self.config
        parts = (
            c.pool,
            c.engine.value,
            self.model_path,
            c.redis_url,
            c.kv_cache_gib,
            c.max_running,
            c.block_size,
            c.tensor_parallel,
            c.dtype,
            c.engine_threads,
            c.ageing_s,
            c.class_preemptions_max,
            c.fair_output_tokens,
        )
        moves = [getattr(c, f.name) for f in fields(c) if f.name.startswith("migration")]
        return "|".join(map(str, (*parts, c.max_model_len, *moves)))


def installation_of(redis_url: str) -> str:
    """Returns a digest of the store, which makes an installation; tells no password."""
    return hashlib.sha256(redis_url.encode()).hexdigest()[:16]
