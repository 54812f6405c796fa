"""Short prompts are rendered and tokenized in the event loop instead of vLLM's thread pool.

The pool is there so that a long prompt does not hold up other requests. For a short one its two
hops to another thread and back cost several times the work itself.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from vllm.renderers import BaseRenderer

INLINE_MAX_CHARS: Final = 2000
"""About 500 tokens: half a millisecond of rendering and tokenizing."""


def render_short_prompts_inline(renderer: BaseRenderer) -> None:
    """Changes the renderer's two asynchronous steps; longer prompts still go to the threads."""
    made: Any = renderer
    made._tokenize_prompt_async = _choose(
        made._tokenize_prompt, made._tokenize_prompt_async, lambda args, _: _text_chars(args[0])
    )
    if hasattr(made, "_apply_chat_template_async"):
        made._apply_chat_template_async = _choose(
            _template_step(), made._apply_chat_template_async, _chat_chars
        )


def _template_step() -> Callable[..., Any]:
    # Only renderers of Hugging Face tokenizers have the step; the import is that of theirs.
    from vllm.renderers.hf import safe_apply_chat_template

    return safe_apply_chat_template


def _choose(
    inline: Callable[..., Any],
    threaded: Callable[..., Awaitable[Any]],
    chars: Callable[[tuple[Any, ...], dict[str, Any]], int],
) -> Callable[..., Awaitable[Any]]:
    async def step(*args: Any, **kwargs: Any) -> Any:
        if chars(args, kwargs) <= INLINE_MAX_CHARS:
            return inline(*args, **kwargs)
        return await threaded(*args, **kwargs)

    return step


def _text_chars(prompt: Any) -> int:
    text = prompt.get("prompt")
    return len(text) if isinstance(text, str) else 0


def _chat_chars(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    if kwargs.get("tools"):
        # A template may write long descriptions of them.
        return INLINE_MAX_CHARS + 1
    conversation = args[2]
    return sum(len(str(message.get("content") or "")) for message in conversation)
