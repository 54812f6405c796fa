"""vLLM's serving classes with our errors in mid-stream, and parsers only where they are needed."""

from typing import Any

from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.exceptions import GenerationError, VLLMValidationError

from controlplane.gateway.call import current_call
from controlplane.gateway.errors import ApiError, broken_off_json, error_json
from controlplane.gateway.frontend.llm import StreamFailed
from controlplane.gateway.frontend.mapping import from_validation
from engine_pool.errors import PoolError


class _OurErrors:
    """Gives errors in mid-stream our shape (mixin for vLLM's serving classes)."""

    def _convert_generation_error_to_streaming_response(self, e: GenerationError) -> str:
        return broken_off_json(e.error if isinstance(e, StreamFailed) else PoolError(str(e)))

    def create_streaming_error_response(self, message: Any, *args: Any, **kwargs: Any) -> str:
        if isinstance(message, VLLMValidationError):
            return error_json(from_validation(message))
        return error_json(ApiError(500, "The request failed in the gateway."))


class PoolChat(_OurErrors, OpenAIServingChat):
    """vLLM's chat completions; its parser runs for requests that need one."""

    @property
    def parser_cls(self) -> Any:
        """The parser of tool calls and reasoning; None for a call whose text is only text.

        It looks at every token, which costs as much as all else that vLLM does for it here.
        """
        call = current_call.get(None)
        return self._parser_cls if call is None or call.needs_parser else None

    @parser_cls.setter
    def parser_cls(self, parser_cls: Any) -> None:
        self._parser_cls = parser_cls


class PoolCompletion(_OurErrors, OpenAIServingCompletion):
    """vLLM's text completions."""
