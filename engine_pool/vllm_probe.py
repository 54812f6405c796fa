"""A request that an engine asks of itself, to see whether a move loses anything."""

import time
import uuid
from typing import TYPE_CHECKING, Any

from engine_pool.ports import EngineRequest
from engine_pool.types import PriorityClass, RequestId
from engine_pool.vllm_detail import ONE_FRAME_BYTES

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest

TENANT = "self-test"
STRIDE = 7919
"""A prime beyond small vocabularies' divisors: neighbours in the prompt are far apart."""


def probe_request(
    request_id: str, prompt_tokens: int, max_tokens: int, vocabulary: int
) -> EngineRequest:
    """Returns a greedy request of exactly `max_tokens` tokens. With another number of them its
    prompt is the same, so its answer begins the same."""
    from vllm.v1.serial_utils import MsgpackEncoder

    now_unix_s = time.time()
    prompt = [n * STRIDE % vocabulary for n in range(1, prompt_tokens + 1)]
    core_request = _core_request(request_id, prompt, max_tokens, now_unix_s)
    frames: list[Any] = list(MsgpackEncoder(size_threshold=ONE_FRAME_BYTES).encode(core_request))
    return EngineRequest(
        request_id=RequestId(request_id),
        epoch=1,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=max_tokens,
        priority_class=PriorityClass.NORMAL,
        tenant=TENANT,
        arrival_unix_s=now_unix_s,
        payload=bytes(frames[0]),
    )


def _core_request(
    request_id: str, prompt: list[int], max_tokens: int, now_unix_s: float
) -> "EngineCoreRequest":
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=now_unix_s,
        lora_request=None,
        # Each run computes all of its prompt: blocks of an earlier one would hide a move's
        # mistakes, and the two runs that are compared would not take the same steps.
        cache_salt=uuid.uuid4().hex,
        data_parallel_rank=None,
    )
