"""What an undisturbed request gives: computed for simulated engines, measured for real ones."""

import time
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.chaos_journey import Expected, Journey
from engine_pool.ports import EngineRequest
from engine_pool.served_model import ServedModel, sample_text
from engine_pool.simulator.answer import Answer
from engine_pool.types import PriorityClass, RequestId


class SimulatedReference:
    """A simulated engine's answer follows from the request's id alone."""

    def __init__(self, model: Path) -> None:
        self._text = sample_text(ServedModel(str(model), model.name))
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def expected(self, journey: Journey) -> Expected:
        request = EngineRequest(
            request_id=RequestId(journey.request_id),
            epoch=1,
            prompt_tokens=1,
            max_tokens=journey.max_tokens,
            # The clients ask for all of their tokens (ignore_eos).
            min_tokens=journey.max_tokens,
            priority_class=PriorityClass.NORMAL,
            tenant=journey.tenant,
            arrival_unix_s=time.time(),
            payload=b"",
        )
        tokens = Answer(request, self._text).first(journey.max_tokens)
        return Expected(tokens, self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class MeasuredReference:
    """What the same engines gave for the same prompts before the first fault, one at a time."""

    def __init__(self, answers: Mapping[int, Journey]) -> None:
        """`answers`: by prompt, the longest that is asked for."""
        self._answers = answers

    def expected(self, journey: Journey) -> Expected:
        whole = self._answers[journey.prompt]
        if journey.max_tokens != whole.max_tokens:
            raise ValueError(f"prompt {journey.prompt} was measured with other lengths")
        return Expected(tuple(whole.token_ids), whole.text)
