"""A vLLM EngineCore in this very process, behind ports.Engine.

Unforked vLLM, version VLLM_VERSION: its core, scheduler and codec are internal API, so vllm_hooks
looks for what is used here and in the vllm_* modules beside it. One process an engine: the `uni`
executor runs the model in the step thread (ARCHITECTURE.md, Processes). With tensor parallelism
vLLM starts a worker process a rank, and the scheduler stays here. On CPU nothing is compiled: eager
steps are as fast there, and the compiler costs memory and seconds of start.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from engine_pool.class_rules import ClassRules
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import EngineFailed, EngineRefused
from engine_pool.ports import EngineLoad, EngineRequest, StepOutput
from engine_pool.turns import TurnRules, Turns, check_weight
from engine_pool.types import PriorityClass, RequestId, RequestLoad
from engine_pool.vllm_detail import encode_detail
from engine_pool.vllm_hooks import check_parts, check_request, check_version
from engine_pool.vllm_kv import VllmKv
from engine_pool.vllm_moves import VllmMoves, is_running
from engine_pool.vllm_queue import VllmQueue
from engine_pool.vllm_rank import return_freed_memory
from engine_pool.vllm_returns import VllmReturns
from engine_pool.vllm_shape import read_shape, why_engine_cannot_move
from engine_pool.vllm_workers import WORKER_CLASS, find_workers
from migration.ports import KvPlane
from migration.remote_plane import PlaneTerms

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

log = logging.getLogger(__name__)

IDLE_STEP_S = 0.001
"""Pause after a step in which nothing could run, so that the thread it waits for gets the
processor."""
SPIN_COUNT = 5000
"""Turns that an OpenMP thread spins at a barrier before it sleeps, some 50 us: longer than the gap
between two operations. On quiet cores any count is as fast; where others want the cores too, long
spins take them from the very thread that is waited for."""
WARM_UP_PROMPT_TOKENS = 16
WARM_UP_STEPS_MAX = 64
"""The warm-up requests end after 3 steps; more means that the engine does not get on."""


class VllmEngine:
    """Implements ports.Engine. Built in the thread that steps it: OpenMP's threads belong to it."""

    def __init__(self, spec: EngineSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """Loads the model; minutes for a large one. `clock` says how long requests wait (monotonic
        seconds). Raises: EngineFailed, or vLLM's own errors."""
        is_cpu = _prepare_environment(spec)
        check_version()
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor
        from vllm.v1.serial_utils import MsgpackDecoder

        config = _vllm_config(spec, is_cpu=is_cpu)
        self._core = EngineCore(config, Executor.get_class(config), log_stats=False)
        check_parts(self._core)
        scheduler: Any = self._core.scheduler
        self._scheduler = scheduler
        # Block lists by request; of several KV cache groups the first stands for all.
        self._blocks = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        self._decoder = MsgpackDecoder(EngineCoreRequest)
        self._max_model_len: int = config.model_config.max_model_len
        self._max_running: int = config.scheduler_config.max_num_seqs
        self._classes: dict[RequestId, PriorityClass] = {}
        self._preemptions_total = 0
        self._preemptions: dict[RequestId, int] = {}
        self._turns = Turns(TurnRules.of(spec.config))
        self._queue = VllmQueue(self._core, self._turns, clock)
        self._workers = find_workers(self._core, spec.config.tensor_parallel)
        self._moves = self._movable()
        self._returns = VllmReturns(self._core, self._workers, entered=self._adopted)
        self._warm_up()
        return_freed_memory()

    @property
    def max_model_len(self) -> int:
        """Tokens: longest prompt plus output."""
        return self._max_model_len

    @property
    def moves(self) -> VllmMoves:
        return self._moves

    @property
    def kv(self) -> VllmKv | None:
        """The KV memory of this process; None where it is in workers' or cannot be copied."""
        return self._workers.kv

    def open_plane(self, terms: PlaneTerms) -> KvPlane | None:
        """Opens the plane over its KV memory, once. Any thread. None: its blocks cannot be
        copied."""
        return None if self._workers.facts.why_not else self._workers.open_plane(terms)

    def use_classes(self, classes: ClassRules) -> None:
        self._turns.use_classes(classes)

    def add(self, request: EngineRequest) -> None:
        own = self._read(request)
        if request.output_token_ids:
            self._returns.add(request, own)
            return
        self._queue.arrive(own, request)
        self._core.add_request(own)
        self._classes[request.request_id] = request.priority_class

    def _read(self, request: EngineRequest) -> "Request":
        """Decodes a request and begins to compile its grammar, if it has one. Raises:
        EngineRefused."""
        check_weight(request)
        try:
            core_request = self._decoder.decode(request.payload)
        except Exception as error:
            raise EngineRefused(f"the payload is not a request of this vLLM: {error}") from error
        if core_request.request_id != request.request_id:
            raise EngineRefused(f"the payload is request {core_request.request_id}'s")
        prompt_tokens = len(core_request.prompt_token_ids or ())
        if not 0 < prompt_tokens < self._max_model_len:
            raise EngineRefused(
                f"{prompt_tokens} prompt tokens; the model takes 1 to {self._max_model_len - 1}"
            )
        try:
            return self._core.preprocess_add_request(core_request)[0]
        except Exception as error:
            # Whatever one request does wrong, the engine serves the others.
            raise EngineRefused(f"{type(error).__name__}: {error}") from error

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        # A held request is its source's still, and a transfer may be writing to its blocks.
        mine = [i for i in request_ids if not self._moves.holds(i)]
        self._returns.abort(mine)
        self._core.abort_requests(list[str](mine))
        self._forget(mine)

    def has_work(self) -> bool:
        if self._workers.is_broken:
            return True  # the step says so
        if self._returns.has_work():
            return True
        return self._scheduler.has_requests() or bool(self._core.batch_queue)

    def step(self) -> list[StepOutput]:
        if self._workers.is_broken:
            raise EngineFailed("a worker process of the engine has ended")
        self._returns.before_step()
        if refused := self._returns.take_refusals():
            return refused
        self._queue.before_step()
        outputs, model_executed = self._core.step_fn()
        self._core.post_step(model_executed)
        self._queue.look()
        waits = self._scheduler.has_unfinished_requests() or self._returns.has_work()
        if not model_executed and waits:
            # Waits for a grammar that another thread compiles; as vLLM's own loop does.
            time.sleep(IDLE_STEP_S)
        mine = outputs.get(0) if outputs else None
        if mine is None:
            return []
        produced = [_step_output(o) for o in mine.outputs]
        for o in produced:
            self._queue.produced(o.request_id, len(o.token_ids))
        self._forget(o.request_id for o in produced if o.finish_reason is not None)
        return produced

    def load(self) -> EngineLoad:
        scheduler = self._scheduler
        pool = scheduler.kv_cache_manager.block_pool
        size: int = scheduler.block_size
        # One block is vLLM's null block, which no request can have.
        capacity_blocks = pool.num_gpu_blocks - 1
        # A parked request is this engine's until it is released. A held one is its source's, but
        # its blocks are used here.
        parked = self._moves.parked_requests()
        batch = (*scheduler.running, *(r for r in parked if is_running(r)))
        queue = (
            *scheduler.kv_holding_waiting,
            *scheduler.waiting,
            *(r for r in parked if not is_running(r)),
            *self._returns.pending(),
        )
        running = tuple(self._request_load(r, size) for r in batch)
        waiting = tuple(self._request_load(r, size, is_waiting=True) for r in queue)
        self._count_preemptions((*running, *waiting))
        return EngineLoad(
            capacity_tokens=capacity_blocks * size,
            used_tokens=(capacity_blocks - pool.get_num_free_blocks()) * size,
            block_size_tokens=size,
            max_running=self._max_running,
            running=running,
            waiting=waiting,
            preemptions_total=self._preemptions_total,
        )

    def close(self) -> None:
        self._workers.close()
        self._core.shutdown()

    def _request_load(self, r: "Request", size: int, *, is_waiting: bool = False) -> RequestLoad:
        request_id = RequestId(r.request_id)
        blocks = len(self._blocks.get(request_id, ()))
        # One token more than there are: the next one needs its place too.
        needed_blocks = -(-(r.num_tokens + 1) // size) if is_waiting else 0
        return RequestLoad(
            request_id=request_id,
            priority_class=self._classes.get(request_id, PriorityClass.NORMAL),
            kv_tokens=blocks * size,
            prompt_tokens=r.num_prompt_tokens,
            output_tokens=r.num_output_tokens,
            demand_tokens=max(0, needed_blocks - blocks) * size,
            preemptions=r.num_preemptions,
        )

    def _count_preemptions(self, requests: Iterable[RequestLoad]) -> None:
        for r in requests:
            if r.preemptions:
                self._preemptions_total += r.preemptions - self._preemptions.get(r.request_id, 0)
                self._preemptions[r.request_id] = r.preemptions

    def _forget(self, request_ids: Iterable[RequestId]) -> None:
        ended = list(request_ids)
        for request_id in ended:
            self._classes.pop(request_id, None)
            self._preemptions.pop(request_id, None)
        self._queue.ended(ended)
        self._moves.forget(ended)

    def _movable(self) -> VllmMoves:
        facts = self._workers.facts
        why_not = why_engine_cannot_move(self._core) or facts.why_not
        if why_not:
            log.warning("live migration is off: %s", why_not)
        return VllmMoves(
            self._core,
            self._workers,
            shape=read_shape(self._core, facts),
            why_not=why_not,
            read=self._read,
            adopted=self._adopted,
            ended=self._forget,
            looked=self._queue.looked,
        )

    def _adopted(self, request: EngineRequest, preemptions: int) -> None:
        self._classes[request.request_id] = request.priority_class
        # Those were another engine's.
        self._preemptions[request.request_id] = preemptions
        self._queue.adopted(self._scheduler.requests[request.request_id], request)

    def _warm_up(self) -> None:
        """Runs a prefill and a few decodes with every kind of sampling before the first client
        waits.

        The first use of each costs up to seconds, and a core whose first forward is not a prefill
        died: SIGILL in its attention kernel.
        """
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        settings = (
            SamplingParams(temperature=0.0, max_tokens=3),
            SamplingParams(temperature=0.8, top_p=0.9, seed=1, logprobs=2, max_tokens=3),
            SamplingParams(
                temperature=1.0, top_k=8, presence_penalty=0.5, prompt_logprobs=1, max_tokens=3
            ),
        )
        for number, params in enumerate(settings):
            core_request = EngineCoreRequest(
                request_id=f"warm-up-{number}",
                prompt_token_ids=list(range(1, WARM_UP_PROMPT_TOKENS + 1)),
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=0.0,
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            own, wave = self._core.preprocess_add_request(core_request)
            check_request(own)
            self._core.add_request(own, wave)
        for _ in range(WARM_UP_STEPS_MAX):
            if not self.has_work():
                break
            self.step()
        else:
            raise EngineFailed(f"the warm-up did not end within {WARM_UP_STEPS_MAX} steps")
        self._scheduler.reset_prefix_cache()


def _prepare_environment(spec: EngineSpec) -> bool:
    """Sets what vLLM and torch read at import. Returns whether this is a CPU build of torch."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # A copy of this process, which has threads, could hang.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    threads = max(1, spec.threads // spec.config.tensor_parallel)
    # Ray sets 1 for an actor without CPUs of its own; several engines share the machine's cores.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    import torch

    is_cpu = torch.version.cuda is None and torch.version.hip is None
    if is_cpu:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        # vLLM would bind every engine to the same first cores.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        torch.set_num_threads(threads)
    return is_cpu


def _vllm_config(spec: EngineSpec, *, is_cpu: bool) -> "VllmConfig":
    from vllm.engine.arg_utils import EngineArgs

    gib = 1024**3
    ranks = spec.config.tensor_parallel
    return EngineArgs(
        model=spec.model_path,
        max_model_len=spec.config.max_model_len,
        dtype=spec.config.dtype,
        max_num_seqs=spec.config.max_running,
        block_size=spec.config.block_size,
        # vLLM's is a rank's, and each has its shard of every block.
        kv_cache_memory_bytes=int(spec.config.kv_cache_gib * gib) // ranks,
        scheduling_policy="priority",
        enforce_eager=is_cpu,
        tensor_parallel_size=ranks,
        distributed_executor_backend="uni" if ranks == 1 else "mp",
        worker_extension_cls="" if ranks == 1 else WORKER_CLASS,
        disable_log_stats=True,
    ).create_engine_config()


def _step_output(output: Any) -> StepOutput:
    stats = output.prefill_stats
    return StepOutput(
        request_id=RequestId(output.request_id),
        token_ids=tuple(output.new_token_ids),
        finish_reason=None if output.finish_reason is None else str(output.finish_reason),
        stop_reason=output.stop_reason,
        cached_tokens=stats.num_cached_tokens if stats is not None else 0,
        detail=encode_detail(output),
    )
