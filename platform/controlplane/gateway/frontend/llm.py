"""vLLM's engine client without an engine: requests go to our pool, tokens come from our reader.

A subclass of AsyncLLM with an `__init__` of its own, so that vLLM's serving classes take it for
the real one. It keeps vLLM's input processing and detokenizing and replaces what lies between:
`generate`, the queue of outputs (output_queue.py says why), and the engine.
"""

import hashlib
import logging
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from copy import copy
from typing import Any

from vllm.config import VllmConfig
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.renderers import renderer_from_config
from vllm.renderers.inputs.preprocess import extract_prompt_components
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import FINISH_REASON_STRINGS, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.serial_utils import MsgpackEncoder

from controlplane.gateway import metrics
from controlplane.gateway.call import Call, Migration, current_call, migration_of
from controlplane.gateway.left_calls import LeftCalls, Tell
from controlplane.gateway.output_queue import OutputQueue
from controlplane.gateway.resume import PROMPT
from engine_pool import vllm_detail
from engine_pool.client import PoolClient
from engine_pool.errors import PoolError
from engine_pool.ports import EngineRequest
from engine_pool.stream import Stream, Visit
from engine_pool.submission import Submission
from engine_pool.token_log import TokenFrame
from engine_pool.types import RequestId

logger = logging.getLogger(__name__)

_FINISH_REASONS = {text: FinishReason(i) for i, text in enumerate(FINISH_REASON_STRINGS)}


class StreamFailed(GenerationError):
    """A PoolError in a form that vLLM's serving passes on instead of logging it as its own bug."""

    def __init__(self, error: PoolError) -> None:
        super().__init__(str(error))
        self.error = error


class PoolLLM(AsyncLLM):
    """AsyncLLM without an engine: submits to the pool, is fed by the token reader (FrameSink)."""

    # AsyncLLM's own __init__ starts engine processes.
    def __init__(self, vllm_config: VllmConfig, client: PoolClient) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.scheduler_config = vllm_config.scheduler_config
        self.observability_config = vllm_config.observability_config
        self.log_requests = self.log_stats = False
        self.admission_stats = self.logger_manager = self.output_handler = self.profiler = None
        self._client_count = 1
        self.renderer = renderer_from_config(vllm_config)
        self.input_processor = InputProcessor(vllm_config, self.renderer)
        self.output_processor = OutputProcessor(
            self.renderer.tokenizer, log_stats=False, stream_interval=1
        )
        self.engine_core = None
        self._client = client
        self._encoder = MsgpackEncoder(size_threshold=vllm_detail.ONE_FRAME_BYTES)
        self._calls: dict[str, Call] = {}
        self.left = LeftCalls()

    @property
    def errored(self) -> bool:
        return False

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def shutdown(self, timeout: float | None = None) -> None:
        self.renderer.shutdown()

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM.generate, for rendered prompts. The outputs are not merged.

        Closing the generator ends nothing: the owner of the call does, by `end` or `detach`.
        Raises, while iterated: VLLMValidationError, StreamFailed.
        """
        # Read here and not in the generator, which may run in another task than the door's.
        return self._generate(current_call.get(), prompt, sampling_params, request_id, kwargs)

    async def _generate(
        self,
        call: Call,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        kwargs: dict[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        try:
            request = self._to_request(call, prompt, params, request_id, kwargs)
        except Exception as error:
            call.failure = error
            raise
        parent, children = _fan_out(request)
        ids = [child.request_id for child in children]
        queue = OutputQueue(request_id, lambda: self._note_taken(ids))
        text, _, _ = extract_prompt_components(self.model_config, prompt)
        for index, child in enumerate(children):
            self._claim(call, child.request_id)
            self.output_processor.add_request(child, text, parent, index, queue)
        call.engine_ids += ids
        call.parent_ids.append(request_id)
        try:
            await self._begin(call, children, queue)
            call.accepted.set()
            is_finished = False
            while not is_finished:
                output = await queue.get()
                if isinstance(output, Migration):
                    # Read together with the outputs, so that it is told at its own place.
                    call.untold.append(output)
                    continue
                is_finished = output.finished
                yield output
        except PoolError as error:
            call.failure = error
            raise StreamFailed(error) from error

    def end(self, call: Call) -> None:
        """Aborts at their engines what a call has not finished. Safe to call again."""
        self._client.dispatcher.abort(self._release(call))

    def detach(self, call: Call, tell: Tell) -> list[str]:
        """Lets go of a call whose client left, without aborting it; returns what still runs.

        `tell` is called once, when it ends without having been resumed.
        """
        mine = self._release(call)
        streams = self._client.reader.streams_of(mine)
        for stream in streams:
            stream.unread = _nothing
            self._client.reader.note_room(stream.request_id)
        ids = [s.request_id for s in streams]
        self.left.add(call, ids, tell)
        return ids

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        """Takes frames from the token reader: turns them into text, hands it to the requests."""
        now_s = time.monotonic()
        outputs = []
        for frame in frames:
            call = self._calls.get(frame.request_id)
            if call is None:
                self.left.note(frame, now_s)
                continue
            if frame.error is not None:
                error = PoolError(frame.error.message)
                error.code = frame.error.code
                self.fail(frame.request_id, error)
                continue
            if frame.token_ids:
                gap_s = call.note_tokens(frame.request_id, len(frame.token_ids), now_s)
                if gap_s is not None:
                    metrics.INTER_TOKEN_S.observe(gap_s)
                call.cached_tokens = max(call.cached_tokens, frame.cached_tokens)
                call.note_times(frame.queue_ms, frame.prefill_ms)
            call.is_cancelled |= frame.finish_reason == "abort"
            outputs.append(_to_output(frame))
        if outputs:
            self._process(outputs)

    def moved(self, request_id: str, visit: Visit) -> None:
        """Notes that a request's next tokens come from another instance."""
        call = self._calls.get(request_id)
        state = self.output_processor.request_states.get(request_id)
        if call is None or state is None or state.queue is None:
            self.left.visited(request_id, visit)
            return
        migration = migration_of(call, request_id, visit)
        call.note_migration(migration)
        state.queue.put(migration)
        if visit.is_replay:
            return
        if visit.gap_ms is not None:
            metrics.MOVED_GAP_S.observe(visit.gap_ms / 1000)
        if visit.gap_ms is not None or not call.is_resumed:
            metrics.MOVED_STREAMS.inc()

    def fail(self, request_id: str, error: PoolError) -> None:
        """Ends a request with an error, after what it has already got."""
        self.left.fail(request_id, error)
        if (state := self.output_processor.request_states.get(request_id)) and state.queue:
            state.queue.put(error)

    def _process(self, outputs: list[EngineCoreOutput]) -> None:
        try:
            processed = self.output_processor.process_outputs(outputs, time.monotonic(), None)
        except Exception as error:
            if len(outputs) > 1:
                # One request's text must not end the others': find it.
                for output in outputs:
                    self._process([output])
                return
            logger.exception("%s: its output could not be processed", outputs[0].request_id)
            self.fail(outputs[0].request_id, PoolError(f"{type(error).__name__} in the gateway."))
            return
        if processed.reqs_to_abort:
            # A stop string ended them here; their engines do not know yet.
            self._client.dispatcher.abort(processed.reqs_to_abort)

    def _to_request(
        self,
        call: Call,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        kwargs: dict[str, Any],
    ) -> EngineCoreRequest:
        request = self.input_processor.process_inputs(
            request_id,
            prompt,
            params,
            supported_tasks=("generate",),
            arrival_time=call.arrived_unix_s,
            trace_headers=kwargs.get("trace_headers"),
        )
        request.reasoning_ended = kwargs.get("reasoning_ended")
        request.reasoning_parser_kwargs = kwargs.get("reasoning_parser_kwargs")
        # vLLM would add random characters; our ids are unique, and a replay needs the same ones.
        request.external_req_id = request.request_id
        prompt_tokens = len(request.prompt_token_ids or ())
        limit = self._client.view.max_model_len
        if limit is not None and prompt_tokens >= limit:
            raise VLLMValidationError(
                f"This model's maximum context length is {limit} tokens, the prompt has"
                f" {prompt_tokens}.",
                parameter="input_tokens",
            )
        call.prompt_tokens += prompt_tokens
        call.fields["prompt_tokens"] = str(call.prompt_tokens).encode()
        call.fields[PROMPT + request_id] = _digest(request)
        return request

    async def _begin(
        self, call: Call, children: Sequence[EngineCoreRequest], queue: OutputQueue
    ) -> None:
        submission = Submission(
            [self._to_engine_request(call, child) for child in children],
            queue.unread,
            call.request_id,
            call.fields,
            _cacheable(children[0]),
            children[0].cache_salt or "",
        )
        if call.places is not None:
            await self._resume(call, submission, children[0])
            return
        sent = await self._client.dispatcher.submit(submission)
        if self._client.config.policy.dispatch.is_late_binding:
            metrics.GATEWAY_WAIT_S.labels(call.priority_class.value).observe(sent.waited_s)
        call.note_sent(sent.instance)
        call.dispatch_reason = sent.reason

    async def _resume(self, call: Call, submission: Submission, first: EngineCoreRequest) -> None:
        """Opens the streams of a prompt that was sent before."""
        assert call.places is not None
        is_same = _digest(first) == call.prompts.get(call.parent_ids[-1])
        for request_id in submission.ids:
            stream = Stream(request_id, submission.unread, order=submission.alone(request_id))
            stream.why_no_replay = "" if is_same else "its prompt cannot be made again exactly"
            places = call.places.get(request_id, ("", ""))
            await self._client.dispatcher.resume(stream, places)

    def _to_engine_request(self, call: Call, request: EngineCoreRequest) -> EngineRequest:
        params = request.sampling_params
        assert params is not None, "only generation is served"
        max_tokens = params.max_tokens or 1
        return EngineRequest(
            request_id=RequestId(request.request_id),
            epoch=1,
            prompt_tokens=len(request.prompt_token_ids or ()),
            max_tokens=max_tokens,
            min_tokens=max_tokens if params.ignore_eos else params.min_tokens,
            priority_class=call.priority_class,
            tenant=call.tenant,
            weight=call.weight,
            arrival_unix_s=call.arrived_unix_s,
            payload=bytes(self._encoder.encode(request)[0]),
        )

    def _release(self, call: Call) -> list[str]:
        """Forgets those of a call's requests that are still its own, and returns them."""
        mine = [i for i in call.engine_ids if self._calls.get(i) is call]
        for engine_id in mine:
            del self._calls[engine_id]
        self.output_processor.abort_requests(mine, internal=True)
        if len(mine) > 1:
            # vLLM keeps the parent of several choices under the id that they share.
            self.output_processor.abort_requests(call.parent_ids, internal=True)
        return mine

    def _claim(self, call: Call, engine_id: str) -> None:
        """Makes a request this call's; an older connection of this process to it ends."""
        if call.is_resumed:
            # Before the new state is there, or the news would reach that.
            self._client.reader.supersede(engine_id)
            self.output_processor.abort_requests([engine_id], internal=True)
        self._calls[engine_id] = call

    def _note_taken(self, engine_ids: Sequence[str]) -> None:
        for engine_id in engine_ids:
            self._client.reader.note_room(engine_id)


def _fan_out(
    request: EngineCoreRequest,
) -> tuple[ParentRequest | None, list[EngineCoreRequest]]:
    """Returns the engine requests of the choices, with their parent when there are several."""
    params = request.sampling_params
    assert params is not None, "only generation is served"
    if params.n == 1:
        return None, [request]
    parent = ParentRequest(request)
    children = []
    for index in range(params.n):
        child = copy(request)
        child.request_id, child.sampling_params = parent.get_child_info(index)
        children.append(child)
    return parent, children


def _cacheable(request: EngineCoreRequest) -> Sequence[int]:
    """Returns the prompt's tokens if they alone make its cached blocks, and those are read."""
    params = request.sampling_params
    plain = not request.mm_features and request.lora_request is None
    if not plain or request.prompt_embeds is not None or params is None:
        return ()
    # vLLM computes a prompt whole when it wants the logprobs of its tokens.
    return () if params.skip_reading_prefix_cache else request.prompt_token_ids or ()


def _digest(request: EngineCoreRequest) -> bytes:
    """Returns what tells two prompts apart: a hash of their tokens and pictures."""
    digest = hashlib.blake2b(array("q", request.prompt_token_ids or ()).tobytes(), digest_size=16)
    for feature in request.mm_features or ():
        digest.update(feature.identifier.encode())
    return digest.digest()


def _to_output(frame: TokenFrame) -> EngineCoreOutput:
    logprobs = prompt_logprobs = None
    if frame.detail is not None:
        logprobs, prompt_logprobs = vllm_detail.decode_detail(frame.detail)
    return EngineCoreOutput(
        request_id=frame.request_id,
        new_token_ids=list(frame.token_ids),
        new_logprobs=logprobs,
        new_prompt_logprobs_tensors=prompt_logprobs,
        finish_reason=_FINISH_REASONS[frame.finish_reason] if frame.finish_reason else None,
        stop_reason=frame.stop_reason,
        prefill_stats=PrefillStats(num_cached_tokens=frame.cached_tokens)
        if frame.start == 0
        else None,
    )


def _nothing() -> int:
    return 0
