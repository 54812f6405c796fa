"""vLLM's errors as ours."""

from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError

from controlplane.gateway.errors import ApiError, to_api_error
from controlplane.gateway.frontend.llm import StreamFailed
from engine_pool.errors import PoolError

_LENGTH_PARAMS = ("input_tokens", "input_text")
"""vLLM's parameter names in errors about a prompt that is too long."""


def from_exception(error: Exception) -> ApiError:
    """Returns the answer to what vLLM's serving or rendering raised."""
    if isinstance(error, StreamFailed):
        return to_api_error(error.error)
    if isinstance(error, PoolError):
        return to_api_error(error)
    if isinstance(error, VLLMValidationError):
        return from_validation(error)
    return from_response(create_error_response(error))


def from_validation(error: VLLMValidationError) -> ApiError:
    """Returns the answer to a value that vLLM does not take."""
    message = str(error.args[0]) if error.args else str(error)
    return _bad_request(message, error.parameter)


def from_response(response: ErrorResponse) -> ApiError:
    """Returns the answer that vLLM wanted to give, in our shape."""
    error = response.error
    if error.code == 404 and error.param == "model":
        return ApiError(404, error.message, "model_not_found", "model")
    if error.code == 400:
        return _bad_request(error.message, error.param)
    return ApiError(error.code, error.message, param=error.param)


def from_pydantic(error: ValidationError) -> ApiError:
    """Returns the answer to a body that is no such request; `param` names the first bad field."""
    first = error.errors(include_url=False, include_context=True)[0]
    where = ".".join(str(part) for part in _visible(first["loc"]))
    cause: Any = first.get("ctx", {}).get("error")
    if isinstance(cause, VLLMValidationError):
        return from_validation(cause)
    text = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{where}: {text}" if where else text, param=where or None)


def _bad_request(message: str, param: str | None) -> ApiError:
    if param in _LENGTH_PARAMS or "maximum context length" in message:
        return ApiError(400, message, "context_length_exceeded", "messages")
    return ApiError(400, message, param=param)


def _visible(loc: tuple[int | str, ...]) -> list[int | str]:
    """Drops the names of pydantic's union members, which no client has sent."""
    return [part for part in loc if isinstance(part, int) or part.replace("_", "a").isalnum()]
