"""vLLM's serving classes over the pool: prompts in, OpenAI answers out.

All of this is internal API of the pinned vLLM; `load` fails at start, not at the first request,
when it does not fit. Importing this module takes seconds of CPU time: import it lazily, in a thread
(runtime.py). Only this package imports vLLM in the gateway.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import vllm.envs
from pydantic import TypeAdapter, ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeRequest,
)
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.exceptions import VLLMValidationError
from vllm.renderers.online_renderer import OnlineRenderer

from controlplane.gateway.errors import ApiError
from controlplane.gateway.frontend.endpoints import PoolChat, PoolCompletion
from controlplane.gateway.frontend.inline import render_short_prompts_inline
from controlplane.gateway.frontend.llm import PoolLLM, StreamFailed
from controlplane.gateway.frontend.mapping import (
    from_exception,
    from_pydantic,
    from_response,
    from_validation,
)
from engine_pool.client import PoolClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """What `load` needs to know."""

    model_path: str
    served_model_name: str
    max_model_len: int | None
    tool_parser: str
    """vLLM's name of the parser of tool calls; empty: tools with `tool_choice` auto are refused."""
    reasoning_parser: str


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What the doors use; requests and answers are vLLM's, errors ours (ApiError)."""

    llm: PoolLLM
    models: OpenAIServingModels
    chat: PoolChat
    completion: PoolCompletion
    tokenization: ServingTokenization
    loaded_unix_s: int
    reasons: bool
    """A reasoning parser is set, so every answer goes through it."""

    def fields(self, endpoint: str) -> frozenset[str]:
        """Returns the names of all fields that vLLM's request has."""
        return _FIELDS[endpoint]

    def parse(self, endpoint: str, body: Mapping[str, Any]) -> Any:
        """Returns vLLM's request. Raises: ApiError 400 naming the field."""
        try:
            return _REQUESTS[endpoint].validate_python(body)
        except ValidationError as error:
            raise from_pydantic(error) from None
        # vLLM's own validators raise this through pydantic.
        except VLLMValidationError as error:
            raise from_validation(error) from None

    async def model_cards(self) -> list[dict[str, Any]]:
        """Returns the models that are served, as OpenAI describes them."""
        listed = await self.models.show_available_models()
        ours = {"owned_by": "ferry", "created": self.loaded_unix_s}
        return [card.model_dump(exclude={"permission"}) | ours for card in listed.data]

    async def chunks(self, request: Any) -> AsyncGenerator[str, None]:
        """Returns the answer's events as vLLM makes them. Raises: ApiError."""
        made = await self._create(request)
        assert isinstance(made, AsyncGenerator), "the request asks for a stream"
        return made

    async def complete(self, request: Any, created_unix_s: int) -> bytes:
        """Returns the whole answer as JSON. Raises: ApiError."""
        made = await self._create(request)
        made.created = created_unix_s
        return made.model_dump_json().encode()

    async def tokenize(self, request: Any) -> bytes:
        """Answers a tokenize or detokenize request. Raises: ApiError."""
        serve = self.tokenization
        is_text = isinstance(request, DetokenizeRequest)
        make = serve.create_detokenize if is_text else serve.create_tokenize
        return (await _checked(make(request, None))).model_dump_json().encode()

    def error_of(self, failure: Exception) -> ApiError:
        """Returns what a client sees of a failure."""
        return from_exception(failure)

    async def _create(self, request: Any) -> Any:
        if isinstance(request, ChatCompletionRequest):
            return await _checked(self.chat.create_chat_completion(request))
        return await _checked(self.completion.create_completion(request))


_REQUESTS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "chat": TypeAdapter(ChatCompletionRequest),
    "responses": TypeAdapter(ChatCompletionRequest),
    "completions": TypeAdapter(CompletionRequest),
    "tokenize": TypeAdapter(TokenizeRequest),
    "detokenize": TypeAdapter(DetokenizeRequest),
}
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "chat": frozenset(ChatCompletionRequest.model_fields),
    "responses": frozenset(ChatCompletionRequest.model_fields),
    "completions": frozenset(CompletionRequest.model_fields),
    "tokenize": frozenset(TokenizeChatRequest.model_fields)
    | frozenset(TokenizeCompletionRequest.model_fields),
    "detokenize": frozenset(DetokenizeRequest.model_fields),
}


async def _checked(making: Awaitable[Any]) -> Any:
    """Returns what vLLM made; its two ways of failing become one."""
    try:
        made = await making
    except ApiError:
        raise
    except Exception as error:
        known = from_exception(error)
        if known.status >= 500 and not isinstance(error, StreamFailed):
            logger.exception("vLLM's front end failed")
        raise known from error
    if isinstance(made, ErrorResponse):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # vLLM swallows the cancellation of an answer that does not stream.
            raise asyncio.CancelledError
        raise from_response(made)
    return made


def load(settings: FrontEndSettings, client: PoolClient) -> FrontEnd:
    """Reads the model's configuration and tokenizer; takes seconds. Raises: whatever is wrong."""
    # As vLLM's own render server does: no engine here, so no KV cache to warn about.
    vllm.envs.VLLM_CPU_KVCACHE_SPACE = 0
    args = AsyncEngineArgs(
        model=settings.model_path,
        served_model_name=settings.served_model_name,
        max_model_len=settings.max_model_len,
        reasoning_parser=settings.reasoning_parser,
    )
    model_config = args.create_model_config()
    model_config.quantization = None
    config = VllmConfig(
        model_config=model_config,
        structured_outputs_config=args.create_structured_outputs_config(),
    )
    llm = PoolLLM(config, client)
    render_short_prompts_inline(llm.renderer)
    base = BaseModelPath(name=settings.served_model_name, model_path=settings.served_model_name)
    models = OpenAIServingModels(llm, [base])
    parsers = {
        "enable_auto_tools": bool(settings.tool_parser),
        "tool_parser": settings.tool_parser or None,
    }
    template: dict[str, Any] = {"chat_template": None, "chat_template_content_format": "auto"}
    renderer = OnlineRenderer(
        model_config,
        llm.renderer,
        request_logger=None,
        reasoning_parser=settings.reasoning_parser or None,
        **template,
        **parsers,
    )
    renderer.warmup()
    chat = PoolChat(
        llm,
        models,
        "assistant",
        online_renderer=renderer,
        request_logger=None,
        reasoning_parser=settings.reasoning_parser,
        enable_prompt_tokens_details=True,
        **template,
        **parsers,
    )
    completion = PoolCompletion(
        llm,
        models,
        online_renderer=renderer,
        request_logger=None,
        enable_prompt_tokens_details=True,
    )
    tokenization = ServingTokenization(models, renderer, request_logger=None, **template)
    return FrontEnd(
        llm,
        models,
        chat,
        completion,
        tokenization,
        loaded_unix_s=int(time.time()),
        reasons=bool(settings.reasoning_parser),
    )
