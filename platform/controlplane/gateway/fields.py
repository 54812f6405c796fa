"""Which fields of a request's body are served. What is not is refused by name, never ignored.

vLLM's own request models take any field and ignore what they do not know. Here a body may hold the
fields of those models, except what this product cannot serve, and `service_tier`. A refused field
with the value that means "off" (null, false, or vLLM's default) is fine.
"""

from collections.abc import Mapping
from typing import Any, Final

from controlplane.gateway.errors import ApiError
from engine_pool.types import PriorityClass

EXTRA: Final = frozenset({"service_tier"})
"""Fields that vLLM's models lack and that are served here."""

REFUSED: Final[Mapping[str, str]] = {
    "use_beam_search": "beam search is not served",
    "length_penalty": "it belongs to beam search, which is not served",
    "media_io_kwargs": "only text is served",
    "mm_processor_kwargs": "only text is served",
    "mm_payload": "only text is served",
    "return_mm_kwargs": "only text is served",
    "prompt_embeds": "prompts are text or token ids",
    "kv_transfer_params": "the pool moves KV caches by itself",
    "ec_transfer_params": "only text is served",
    "vllm_xargs": "no extension takes them",
    "session_id": "the pool chooses instances by their load",
    "request_id": "ids are made here; send an X-Request-Id header to name a request",
    "routed_experts_prompt_start": "routed experts are not returned",
    "return_token_offsets": "there is no render endpoint",
    "watermarking": "output is not watermarked",
}
"""Fields of vLLM's models that cannot be served, and why."""

TEXT_PARTS: Final = ("text", "refusal")
"""Types of a message's parts that are served."""

_OFF: Final = (None, False)
_DEFAULTS: Final = {
    "length_penalty": 1.0,
    "routed_experts_prompt_start": 0,
    "mm_payload": "tensors",
}

SIMULATED_REFUSES: Final = (
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "response_format",
    "structured_outputs",
)
"""Simulated engines speak a given text: nothing to constrain, no probabilities."""

_TIERS: Final = {
    "auto": None,
    "default": None,
    "flex": PriorityClass.LOW,
    "priority": PriorityClass.HIGH,
}


def check_fields(body: Mapping[str, Any], known: frozenset[str], *, is_simulated: bool) -> None:
    """Raises: ApiError 400 naming the first field that is not served."""
    for name, value in body.items():
        if name in REFUSED and value not in _OFF and value != _DEFAULTS.get(name, value is None):
            raise ApiError(400, f"`{name}` is not supported: {REFUSED[name]}.", param=name)
        if name not in known and name not in EXTRA:
            raise ApiError(400, f"Unknown field `{name}`.", "unknown_parameter", name)
        if is_simulated and name in SIMULATED_REFUSES and not _is_plain(name, value):
            raise ApiError(
                400, f"`{name}` is not supported: the engines are simulated.", param=name
            )
    _check_parts(body.get("messages"))


def class_of(
    body: Mapping[str, Any], default: PriorityClass, highest: PriorityClass
) -> PriorityClass:
    """Returns the request's class: what its body asks for, but never above what the tenant may.

    `service_tier` flex is low and priority high; vLLM's `priority` is low above 0, high below.
    Raises: ApiError 400.
    """
    tier = body.get("service_tier")
    if tier is not None and tier not in _TIERS:
        known = ", ".join(_TIERS)
        raise ApiError(400, f"`service_tier` must be one of {known}.", param="service_tier")
    wanted = _TIERS.get(tier) if tier is not None else None
    number = body.get("priority")
    if wanted is None and isinstance(number, int) and number != 0:
        wanted = PriorityClass.LOW if number > 0 else PriorityClass.HIGH
    if wanted is None:
        return default
    return wanted if wanted.rank >= highest.rank else highest


def _check_parts(messages: Any) -> None:
    """Raises: ApiError 400 for a message with a part that is no text."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else "text"
            if kind not in TEXT_PARTS:
                raise ApiError(
                    400, f"A part of type {kind!r} is not supported: only text.", param="messages"
                )


def _is_plain(name: str, value: Any) -> bool:
    if name == "response_format" and isinstance(value, dict):
        return value.get("type") == "text"
    return value in (None, False) or (name == "top_logprobs" and value == 0)
