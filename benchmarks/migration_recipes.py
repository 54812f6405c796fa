"""The requests of the migration soak, and what is compared of their answers."""

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.migration_rig import Heard, make_request, prompt_of
from engine_pool.ports import EngineRequest
from engine_pool.vllm_detail import decode_detail
from tests.tiny_model import VOCABULARY

OF_EACH_KIND: Final = 5
PROMPT_TOKENS: Final = (40, 560)
OUTPUT_TOKENS: Final = (60, 260)
LOGPROB_TOLERANCE: Final = 0.01
"""In fp32 a batch of another size, or a prompt in other chunks, changes the fifth digit."""
EOS: Final = 2
SCHEMA: Final = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 6}},
    "required": ["a"],
    "additionalProperties": False,
}
STOPPING: Final = list(range(VOCABULARY * 9 // 10, VOCABULARY))
"""A tenth of all tokens ends an answer, so some end early."""

KINDS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 7},
    "top-p-top-k": {"temperature": 1.3, "seed": 8, "top_p": 0.9, "top_k": 40},
    "penalties": {
        "frequency_penalty": 0.9,
        "presence_penalty": 0.6,
        "repetition_penalty": 1.3,
    },
    "penalties-seeded": {"temperature": 1.0, "seed": 3, "frequency_penalty": 1.0},
    "logprobs": {"temperature": 1.0, "seed": 5, "logprobs": 2},
    "stop-ids": {"temperature": 1.0, "seed": 4, "min_tokens": 16, "stop_token_ids": STOPPING},
    "regex": {"temperature": 1.0, "seed": 12, "rule": {"regex": "[1-9]{40,}-(red|blue)"}},
    "json": {"temperature": 1.0, "seed": 13, "rule": {"json": json.dumps(SCHEMA)}},
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A request that is sent many times; its answer is a function of these fields."""

    kind: str
    number: int
    prompt_tokens: int
    max_tokens: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number} ({self.prompt_tokens} + {self.max_tokens} tokens)"

    def request(self, *, is_alone: bool = False) -> EngineRequest:
        """Returns a new request. Every second recipe shares its prefix cache with its other
        requests, so that moves find blocks there; `is_alone`: not this one."""
        from vllm import SamplingParams

        settings: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
            "ignore_eos": "rule" not in KINDS[self.kind],
            **KINDS[self.kind],
        }
        if (rule := settings.pop("rule", None)) is not None:
            settings |= {"structured_outputs": _structured(rule), "stop_token_ids": [EOS]}
        is_shared = self.number % 2 == 1 and not is_alone
        return make_request(
            prompt_of(self.prompt_tokens, self.number),
            SamplingParams(**settings),
            salt="shared" if is_shared else None,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that a client would see of one request."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampled tokens, where they were asked for."""
    finish_reason: str | None
    stop_reason: int | str | None
    failure: str


def recipes(rng: random.Random) -> tuple[Recipe, ...]:
    """Returns requests of all kinds, of random lengths."""
    return tuple(
        Recipe(
            kind,
            n * len(KINDS) + number,
            rng.randrange(*PROMPT_TOKENS),
            rng.randrange(*OUTPUT_TOKENS),
        )
        for number, kind in enumerate(KINDS)
        for n in range(OF_EACH_KIND)
    )


def answer_of(heard: Heard) -> Answer:
    """Returns what a stream that has ended said."""
    logprobs: list[float] = []
    for _, frame in heard.frames:
        if frame.detail is not None:
            lists, _ = decode_detail(frame.detail)
            if lists is not None:
                logprobs += lists.logprobs[:, 0].tolist()
    last = heard.frames[-1][1] if heard.frames else None
    return Answer(
        request_id=heard.request_id,
        tokens=tuple(heard.tokens),
        logprobs=tuple(logprobs),
        finish_reason=last.finish_reason if last else None,
        stop_reason=last.stop_reason if last else None,
        failure=heard.failure,
    )


def difference(answer: Answer, expected: Answer, *, may_be_cut: bool) -> str:
    """Returns what is wrong with an answer, "" when it is right. `may_be_cut`: its client left, so
    it may end before the other one."""
    if expected.failure:
        return f"the unmoved one failed: {expected.failure}"
    if answer.failure:
        return f"it failed: {answer.failure}"
    is_cut = answer.finish_reason == "abort"
    if is_cut and not may_be_cut:
        return "it was aborted, though its client stayed"
    wanted = expected.tokens[: len(answer.tokens)] if is_cut else expected.tokens
    if answer.tokens != wanted:
        pairs = zip(answer.tokens, wanted, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        where = f"token {at} differs" if at is not None else "another number of tokens"
        return f"{where} ({len(answer.tokens)} tokens, {len(wanted)} expected)"
    ends = (answer.finish_reason, answer.stop_reason)
    if not is_cut and ends != (expected.finish_reason, expected.stop_reason):
        return f"it ended with {ends}, not {(expected.finish_reason, expected.stop_reason)}"
    if len(answer.logprobs) not in (0, len(answer.tokens)):
        return f"{len(answer.logprobs)} logprobs for {len(answer.tokens)} tokens"
    furthest = max(
        (abs(a - b) for a, b in zip(answer.logprobs, expected.logprobs, strict=False)), default=0.0
    )
    return f"a logprob is off by {furthest:.4f}" if furthest > LOGPROB_TOLERANCE else ""


def _structured(rule: dict[str, Any]) -> object:
    from vllm.sampling_params import StructuredOutputsParams

    params = StructuredOutputsParams(**rule)
    # vLLM's front end would choose it; requests are encoded without one here.
    params._backend = "xgrammar"
    return params
