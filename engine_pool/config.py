"""The pool's settings: one frozen value, made once from the environment and passed down.

Precedence: environment > default; a pool with a row in the database has its row before both
(pool_spec.py). How each value is read stands in pool_settings.py. Django's own settings stand in
`controlplane/settings.py`; what both need (store, pool name, model) is read here and handed to
Django.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_pool.class_rules import ClassRules
from engine_pool.env_values import read
from engine_pool.policy.settings import HeadroomRule, PolicySettings
from engine_pool.policy.wishes import InstanceWish
from engine_pool.policy_env import read_policy
from engine_pool.pool_keys import PoolKeys
from engine_pool.pool_settings import ENGINE_SETTINGS, INSTALLATION
from engine_pool.types import EngineKind

RAY_NAMESPACE = "ferry"
"""All of Ferry's actors live in this Ray namespace."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Settings of one pool (the instances of one model)."""

    pool: str = "default"
    engine: EngineKind = EngineKind.VLLM
    instances: int = 2
    """FERRY_INSTANCES, 0-512: engine instances wanted."""
    model: str = ""
    """FERRY_MODEL: a folder with a Hugging Face checkpoint, or a hub id; empty: the default
    model."""
    served_model_name: str = ""
    """FERRY_SERVED_MODEL_NAME: the name that clients use; empty: the last part of `model`."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    ray_address: str = "auto"
    var_dir: Path = Path("var")
    """FERRY_VAR_DIR: logs, the default model, the embedded database and store."""

    max_model_len: int | None = None
    """FERRY_MAX_MODEL_LEN, tokens: longest prompt plus output; None: what the model allows."""
    kv_cache_gib: float = 0.5
    """FERRY_KV_CACHE_GIB, GiB of KV cache an engine, over all its ranks; on the default model 0.5
    GiB are about 23,000 tokens."""
    max_running: int = 64
    """FERRY_MAX_RUNNING: requests in one step (vLLM's max_num_seqs)."""
    block_size: int | None = None
    """FERRY_BLOCK_SIZE, tokens of a KV block (vLLM's block_size); None: what vLLM takes for the
    platform, 16 on GPUs and 128 on CPU. Smaller blocks waste less of a small memory."""
    engine_threads: int = 0
    """FERRY_ENGINE_THREADS: CPU threads of an engine's forward pass; 0: the machine's cores
    divided by the instances. More threads than cores, or cores that others use, make each step
    much slower."""
    tensor_parallel: int = 1
    """FERRY_TENSOR_PARALLEL, 1-64: ranks that an engine's model is split over, each a process with
    a GPU of its own (on CPU a share of the engine's threads). It divides the model's heads."""
    dtype: str = "auto"
    """FERRY_DTYPE: what engines compute in and keep as KV, by vLLM's name; auto: the model's own,
    and for one in float32 what the platform is best at. In float32 an answer does not depend on
    what else is in the batch."""
    engine_memory_gib: float = 2.0
    """FERRY_ENGINE_MEMORY_GIB, GiB that an engine needs besides its KV cache; checked before
    start."""

    ageing_s: float = 120.0
    """FERRY_AGEING_S, 0 or more, 0: off: for each such period that the first of a class has waited
    in an engine's queue it counts as one class higher there. Above any wait of a healthy pool."""
    class_preemptions_max: int = 3
    """FERRY_CLASS_PREEMPTIONS_MAX, 0-1000, 0: off: how often one running request makes room for
    waiting ones of a higher class. Each time it computes its tokens again."""
    fair_output_tokens: int = 512
    """FERRY_FAIR_OUTPUT_TOKENS, 1-10,000,000: most output tokens that a request is expected to
    produce when its tenant's turn is reckoned; at its end what it really produced counts."""

    report_interval_ms: int = 100
    """Longest time between two load reports of an instance; the pages call it stale after 5 s."""
    report_min_gap_ms: int = 20
    """Shortest time between two reports on change: 50 a second keep the store and the readers
    idle."""
    submit_timeout_s: float = 10.0
    """Longest wait for an engine to accept a request; a step of a long prefill stays well below."""
    start_timeout_s: float = 600.0
    """Longest start of an instance: loading the weights of a large model takes minutes."""
    lost_after_s: float = 10.0
    """No answer for this long: the instance counts as lost. Above any pause of a healthy
    process."""
    stalled_after_s: float = 120.0
    """No finished step for this long with requests running: the instance counts as lost. Above the
    longest prefill of one step, which on a CPU takes half a minute."""
    restart_backoff_s: float = 1.0
    """Wait before the first restart; doubles up to `restart_backoff_max_s`, reset after 60 s of
    serving."""
    restart_backoff_max_s: float = 60.0
    store_timeout_s: float = 5.0
    """How long an engine or a web process waits for the store before it gives up its streams."""
    log_live_s: int = 3600
    """FERRY_REQUEST_MAX_AGE_S: longest life of a request; its log goes with it."""
    log_ended_s: int = 300
    """FERRY_RESUME_S: how long a finished stream can still be resumed."""
    orphan_grace_s: float = 30.0
    """FERRY_ORPHAN_GRACE_S: a request whose web process died goes on this long, so that it can be
    resumed."""
    term_grace_s: float = 25.0
    """FERRY_TERM_GRACE_S: how long an engine whose process gets SIGTERM is drained before what is
    left goes on elsewhere from its log and the process ends. Below the 30 s after which Kubernetes
    kills."""

    replay: bool = True
    """FERRY_REPLAY, on or off: whether requests whose engine was lost go on at another one from
    their logs; off: they end with an error."""
    replays_at_once: int = 8
    """FERRY_REPLAYS_AT_ONCE, 1-1000: lost requests that a web process offers to engines at the same
    time; the others wait in the order of their classes. Enough to fill a batch within a few steps,
    too few to keep new requests away."""
    replay_wait_s: float = 60.0
    """FERRY_REPLAY_WAIT_S: how long a lost request waits for an engine to take it. Above a restart
    of a small model's engine, below the patience of clients."""

    migration: bool = True
    """FERRY_MIGRATION, on or off: whether requests move between instances at all."""
    migrations_at_once: int = 4
    """FERRY_MIGRATIONS_AT_ONCE: moves of one instance, those that come and those that go together.
    Each holds one channel and one buffer; more at once only share the same bandwidth."""
    migration_copies_max: int = 8
    """FERRY_MIGRATION_COPIES_MAX: copies of a move before its pause. Two are the rule; a source
    that fills blocks faster than it sends them would never end otherwise."""
    migration_last_blocks: int = 1
    """FERRY_MIGRATION_LAST_BLOCKS: complete blocks that may be left for the pause, besides the one
    that is being filled. Each lengthens the pause by its transfer."""
    migration_copy_share: float = 0.25
    """FERRY_MIGRATION_COPY_SHARE, above 0 to 1: part of the time that copying takes before the
    pause, so that decoding keeps its processor. 1 where copies cost none (GPU)."""
    migration_chunk_mib: float = 4.0
    """FERRY_MIGRATION_CHUNK_MIB, MiB: size of the buffer that blocks are fused in, at least one
    block. Each chunk is answered, which costs 2 to 4 ms where the cores are busy; larger ones have
    the memory bus for longer. The same on all engines of a pool."""
    migration_stage_timeout_s: float = 30.0
    """FERRY_MIGRATION_STAGE_TIMEOUT_S: longest time in which a copy must get on. Above any step of
    an engine in mid prefill, since room is given between two steps."""
    migration_pause_timeout_s: float = 5.0
    """FERRY_MIGRATION_PAUSE_TIMEOUT_S: longest transfer of the last blocks. The request stands
    still meanwhile, so the move is given up rather than waited for."""
    migration_commit_timeout_s: float = 15.0
    """FERRY_MIGRATION_COMMIT_TIMEOUT_S: wait for the answer to a commit, then to the question what
    became of it. The destination answers after the step that it is in."""

    policy: PolicySettings = field(default_factory=PolicySettings)
    """The rules of dispatch and rebalancing; their variables stand in policy_env.py."""

    classes: ClassRules = field(default_factory=dict)
    """How operators want the priority classes treated; published, never from the environment."""
    wishes: Mapping[str, InstanceWish] = field(default_factory=dict)
    """By instance; published, never from the environment, as are the next four."""
    node_wishes: Mapping[str, InstanceWish] = field(default_factory=dict)
    """By node."""
    is_rolling: bool = True
    """Instances with other engine settings than these are replaced one by one."""
    hold_s: float = 0.0
    """How long a request waits for an instance while none serves."""
    hold_max: int = 0
    """Requests that wait so at the same time, in one web process."""
    knows_wishes: bool = False
    """False: nothing is published yet, so engines stay as cordoned or drained as they are."""
    namespace: str = ""
    """Of its keys in the store and its instances' names; empty: the environment's own pool."""

    @property
    def keys(self) -> PoolKeys:
        return PoolKeys(self.namespace)

    @property
    def headroom(self) -> HeadroomRule:
        """What each class keeps free."""
        return self.policy.dispatch.headroom

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "PoolConfig":
        """Raises: ConfigError naming the variable whose value cannot work."""
        default = cls()
        found: dict[str, Any] = {
            name: read(environ, setting.variable, setting.parse, getattr(default, name))
            for name, setting in (INSTALLATION | ENGINE_SETTINGS).items()
        }
        return cls(policy=read_policy(environ), **found)
