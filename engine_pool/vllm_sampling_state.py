"""What vLLM's model runner knows of a request besides its tokens, taken along when it moves.

The first model runner (V1) keeps a request's outputs and its random generator itself, and starts
both afresh for a request that it has not seen: penalties and seeds would go wrong. So what the
source's runner had is installed in the destination's before the first step there. The second one
(V2) is told all tokens with each admission and draws from seed and position: nothing to install.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from vllm.v1.request import Request
    from vllm.v1.worker.gpu_input_batch import CachedRequestState


class SamplingState(msgspec.Struct, frozen=True, array_like=True):
    """The content of `Parked.state`."""

    preemptions: int = 0
    generator: bytes | None = None
    """torch.Generator.get_state(): 5,056 bytes on CPU, 16 on CUDA; None without a seed of its
    own."""


def encode_state(request: "Request", generator: bytes | None) -> bytes:
    """Returns a request's state as `Parked.state`. No step may have the request in flight."""
    return msgspec.msgpack.encode(SamplingState(request.num_preemptions, generator))


def decode_state(state: bytes) -> SamplingState:
    """Raises: msgspec.DecodeError on garbage."""
    return msgspec.msgpack.decode(state, type=SamplingState)


def has_own_generator(request: "Request") -> bool:
    from vllm.sampling_params import SamplingType

    params = request.sampling_params
    return params is not None and params.sampling_type == SamplingType.RANDOM_SEED


def read_generator(runner: Any, request_id: str) -> bytes | None:
    """Returns the state of a request's random generator in a V1 runner, None if it has none."""
    known = runner.requests.get(request_id)
    generator = known.generator if known is not None else None
    if generator is None:
        return None
    state: bytes = generator.get_state().numpy().tobytes()
    return state


def generator_after(seed: int, tokens: int) -> bytes:
    """Returns the state of a seed's generator after so many tokens, as vLLM's sampler for CPUs
    draws: one number a token (TopKTopPSampler.forward_cpu). About 2 us a token."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    for _ in range(tokens):
        torch.randint(0, 2**31, (1,), generator=generator, dtype=torch.long)
    state: bytes = generator.get_state().numpy().tobytes()
    return state


def cached_state(request: "Request", blocks: Sequence[int]) -> "CachedRequestState":
    """Returns what a V1 runner knows of a request that it has run, except its generator."""
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    return CachedRequestState(
        req_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        mm_features=[],
        sampling_params=request.sampling_params,
        generator=None,
        block_ids=(list(blocks),),
        num_computed_tokens=request.num_computed_tokens,
        output_token_ids=list(request.output_token_ids),
    )


def put_state(runner: Any, state: "CachedRequestState", generator: bytes | None) -> None:
    """Makes a V1 runner take a request, outputs and all, for one that it has run before."""
    import torch

    if generator is not None:
        state.generator = torch.Generator(device=runner.device)
        state.generator.set_state(torch.frombuffer(bytearray(generator), dtype=torch.uint8))
    runner.requests[state.req_id] = state


def forget_state(runner: Any, request_id: str) -> None:
    """Makes a V1 runner forget a request that has ended, before the step that would tell it so."""
    runner.requests.pop(request_id, None)
    runner.num_prompt_logprobs.pop(request_id, None)
    # The batch is condensed at the beginning of every step, as this asks for.
    runner.input_batch.remove_request(request_id)
