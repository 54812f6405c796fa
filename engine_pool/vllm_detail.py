"""What a vLLM engine says about its tokens besides the tokens: the encoding of `StepOutput.detail`.

A detail is vLLM's msgpack, in one frame, of the pair (new_logprobs, new_prompt_logprobs_tensors) of
one EngineCoreOutput, each None when there is none. The engine side encodes, the gateway decodes and
puts the two back into the EngineCoreOutput that it feeds to vLLM's OutputProcessor. All else that
the OutputProcessor uses has fields of its own in the frame (tokens, finish and stop reason, cached
tokens); what only other features fill (pooling, KV transfer, routed experts) is not carried.

vLLM is imported at the first use: both functions run only where it is loaded anyway.
"""

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.outputs import LogprobsLists, LogprobsTensors

ONE_FRAME_BYTES = 1 << 60
"""vLLM sends arrays of this size or more in frames of their own: never, so that one frame holds
all."""


def encode_detail(output: "EngineCoreOutput") -> bytes | None:
    """Returns the detail of an output, None when it says nothing more than its tokens."""
    logprobs, prompt_logprobs = output.new_logprobs, output.new_prompt_logprobs_tensors
    if logprobs is None and prompt_logprobs is None:
        return None
    return bytes(_encoder().encode((logprobs, prompt_logprobs))[0])


def decode_detail(detail: bytes) -> "tuple[LogprobsLists | None, LogprobsTensors | None]":
    """Returns (new_logprobs, new_prompt_logprobs_tensors). Raises: msgspec.DecodeError on
    garbage."""
    # A writable copy: torch warns about tensors on memory that it must not write to.
    logprobs, prompt_logprobs = _decoder().decode(bytearray(detail))
    return logprobs, prompt_logprobs


# Neither codec is thread-safe: each process uses them from one thread (step thread, reader's loop).
@functools.cache
def _encoder() -> Any:
    from vllm.v1.serial_utils import MsgpackEncoder

    return MsgpackEncoder(size_threshold=ONE_FRAME_BYTES)


@functools.cache
def _decoder() -> Any:
    from vllm.v1.outputs import LogprobsLists, LogprobsTensors
    from vllm.v1.serial_utils import MsgpackDecoder

    return MsgpackDecoder(tuple[LogprobsLists | None, LogprobsTensors | None])
