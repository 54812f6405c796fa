"""How many tokens a request may take, before anything is tokenized. Pure.

A refusal must cost next to nothing, so a flood of requests is not tokenized first. Once a request
runs, its real tokens count: what was reserved too much is given back at its end, and what goes
beyond the reservation is added while it runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

BYTES_A_TOKEN: Final = 4
"""Of UTF-8: usual for English; a CJK character, three bytes, is a bit less than a token."""
MESSAGE_TOKENS: Final = 4
"""What a chat template writes around a message."""
UNSAID_OUTPUT_TOKENS: Final = 512
"""Reserved for each answer whose request names no maximum: most are shorter, and one that is longer
is charged as it grows. The whole context would refuse nearly everything."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens that are reserved for a request."""

    prompt_tokens: int
    output_tokens: int
    """Of all its choices together."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


NOTHING: Final = Estimate(0, 0)


def estimate_of(
    body: Mapping[str, object], *, choices: int, context_tokens: int | None
) -> Estimate:
    """Returns what to reserve for a request's body, as vLLM's request models read it.

    `choices`: answers to each prompt; `context_tokens`: longest prompt plus output, if known.
    """
    prompt = _prompt_tokens(body)
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    is_said = isinstance(wanted, int) and wanted > 0
    output = wanted if isinstance(wanted, int) and is_said else UNSAID_OUTPUT_TOKENS
    if context_tokens is not None:
        prompt = min(prompt, context_tokens * _prompts(body))
        each = prompt // _prompts(body)
        output = max(1, min(output, context_tokens - each))
    return Estimate(prompt, output * max(1, choices) * _prompts(body))


def _prompt_tokens(body: Mapping[str, object]) -> int:
    given = body.get("prompt")
    if given is not None:
        return max(1, _tokens_of(given))
    messages = body.get("messages")
    count = len(messages) if isinstance(messages, list) else 0
    texts = sum(map(_text_tokens, _strings(messages)))
    tools = sum(map(_text_tokens, _strings(body.get("tools"))))
    return max(1, texts + tools + MESSAGE_TOKENS * count)


def _tokens_of(prompt: object) -> int:
    """Returns the tokens of a text, a list of token ids, or a list of either."""
    if isinstance(prompt, str):
        return _text_tokens(prompt)
    if not isinstance(prompt, list):
        return 0
    if prompt and isinstance(prompt[0], int):
        return len(prompt)
    return sum(map(_tokens_of, prompt))


def _prompts(body: Mapping[str, object]) -> int:
    given = body.get("prompt")
    many = isinstance(given, list) and given and not isinstance(given[0], int)
    return len(given) if isinstance(given, list) and many else 1


def _text_tokens(text: str) -> int:
    size_bytes = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return -(-size_bytes // BYTES_A_TOKEN)


def _strings(value: object) -> Iterator[str]:
    """Yields all texts in a piece of JSON, names of fields too."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            waiting += [*found.keys(), *found.values()]
        elif isinstance(found, list):
            waiting += found
