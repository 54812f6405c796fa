"""What refuses a move: in this pool, and for kinds of requests. The engines decide; this says it.

The engines' own checks stand in engine_pool/vllm_shape.py and migration/.
"""

from collections.abc import Mapping
from typing import Final

from controlplane.fleet.preflight_values import Applies, Found, Obstacle
from migration.ports import KvShape

_COMPARED: Final = (
    "engine",
    "model",
    "layers",
    "block_size_tokens",
    "block_bytes",
    "dtype",
    "layout",
    "ranks",
)
_ENGINE_KINDS: Final = (
    (
        "Pipeline, data or context parallel engines",
        "Their ranks hold blocks of other layers or tokens; only tensor parallel ones move theirs.",
    ),
    ("Speculative decoding", "The draft model's cache would stay behind."),
    (
        "Several KV cache groups",
        "Sliding window, Mamba and hybrid models: their blocks do not stand for the tokens in"
        " order.",
    ),
    ("KV connectors, encoders, own logits processors", "They keep state that does not move."),
)
_REQUEST_KINDS: Final = tuple(
    Obstacle(what, why, Applies.PER_REQUEST)
    for what, why in (
        ("Requests with a LoRA adapter", "The destination may not have it."),
        ("Requests with images or sound", "Their encoder output does not move."),
        ("Requests with prompt embeddings", "The prompt is not made of tokens."),
        (
            "Requests whose prompt is still computed",
            "The move waits for its end; prompt logprobs are complete by then.",
        ),
        ("No room at the destination", "Nothing there is preempted for a request that comes."),
    )
)


def obstacles_of(found: Found) -> tuple[Obstacle, ...]:
    """Lists what refuses moves: first what would stop all of them, then kinds of requests."""
    different = differences(found.shapes)
    pool_says = found.why if found.allowed is False else ""

    def here(is_so: bool) -> Applies:
        return Applies.YES if is_so else Applies.NO

    return (
        Obstacle("Switched off", "FERRY_MIGRATION is off.", here(not found.is_switched_on)),
        Obstacle(
            "The pool's own check", pool_says or "It has none against it.", here(bool(pool_says))
        ),
        Obstacle(
            "Different model, version or block layout",
            "; ".join(filter(None, ["KV blocks fit only where all of it is the same", different])),
            here(bool(different)),
        ),
        # Engines find out at their start and tell the pool: its own check names which it is.
        *(
            Obstacle(what, why, Applies.NO if found.allowed else Applies.UNKNOWN)
            for what, why in _ENGINE_KINDS
        ),
        *_REQUEST_KINDS,
        Obstacle(
            "Too many at once",
            f"An instance takes part in at most {found.at_once} moves at the same time.",
            Applies.PER_REQUEST,
        ),
    )


def differences(shapes: Mapping[str, KvShape]) -> str:
    """Names what instances do not have in common, "" when their blocks fit each other."""
    for field in _COMPARED:
        values: dict[str, str] = {}
        for instance in sorted(shapes):
            values.setdefault(str(getattr(shapes[instance], field)), instance)
        if len(values) > 1:
            told = ", ".join(f"{name} has {value}" for value, name in values.items())
            return f"the instances differ in {field.replace('_', ' ')}: {told}"
    return ""
