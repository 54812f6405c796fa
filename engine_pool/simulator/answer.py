"""What a simulated engine says: the same tokens for the same request, on whichever engine."""

import math
import random
from collections.abc import Sequence

from engine_pool.engine_spec import SampleText
from engine_pool.ports import EngineRequest

NATURAL_MEDIAN_TOKENS = 120
NATURAL_SPREAD = 0.6
"""Natural lengths are log-normal: half of them between 80 and 180 tokens, one in fifty above
400."""


class Answer:
    """The tokens that one request will produce: the same ones for the same request id."""

    def __init__(self, request: EngineRequest, text: SampleText) -> None:
        seeded = random.Random(request.request_id)
        sentence = seeded.randrange(len(text.sentences))
        wanted_tokens = seeded.lognormvariate(math.log(NATURAL_MEDIAN_TOKENS), NATURAL_SPREAD)
        tokens = list(text.openings[sentence])
        while len(tokens) < max(wanted_tokens, request.min_tokens):
            sentence = (sentence + 1) % len(text.sentences)
            tokens += text.sentences[sentence]
        tokens.append(text.eos_token_id)
        self._ends_naturally = len(tokens) <= request.max_tokens
        self._tokens = tokens[: request.max_tokens]

    def token(self, index: int) -> tuple[int, str | None]:
        """Returns the token at an index and, with the last one, why it is the last."""
        is_last = index == len(self._tokens) - 1
        reason = "stop" if self._ends_naturally else "length"
        return self._tokens[index], reason if is_last else None

    def first(self, count: int) -> tuple[int, ...]:
        """Returns the first `count` tokens."""
        return tuple(self._tokens[:count])

    def goes_on_after(self, tokens: Sequence[int]) -> bool:
        """Says whether the answer begins with these tokens, and has more."""
        return len(tokens) < len(self._tokens) and self.first(len(tokens)) == tuple(tokens)
