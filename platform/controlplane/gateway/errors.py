"""Errors of the API: OpenAI's shape, our codes, and which of them are worth a retry.

openai-python retries 408, 409, 429 and >= 500; so what a retry cannot mend is a plain 4xx here, and
what it can mend says after how many seconds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from engine_pool.errors import PoolError

OVERLOADED_RETRY_S = 1
"""Seconds until the load view has changed many times; a client's own backoff adds to it."""
STARTING_RETRY_S = 5
"""Seconds: a store or an instance needs about so long to come back."""


@dataclass(slots=True)
class ApiError(Exception):
    """What a door answers instead of a result."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None
    type: str = field(default="")
    retry_after_ms: int | None = None
    """The same more exactly; either may be given."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers of the answer."""

    def __post_init__(self) -> None:
        Exception.__init__(self, self.message)
        self.type = self.type or _type_of(self.status)
        if self.retry_after_ms is None and self.retry_after_s is not None:
            self.retry_after_ms = self.retry_after_s * 1000


class AccessEnded(PoolError):
    """A request that ran was ended: its key was revoked or its tenant blocked."""

    code = "permission_denied"
    retryable = False


_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}

_POOL_STATUS = {
    "server_is_overloaded": (503, OVERLOADED_RETRY_S),
    "pool_starting": (503, STARTING_RETRY_S),
    "store_unavailable": (503, STARTING_RETRY_S),
    "server_stopping": (503, OVERLOADED_RETRY_S),
    "instance_lost": (503, OVERLOADED_RETRY_S),
    "replay_refused": (503, OVERLOADED_RETRY_S),
    "request_fatal": (422, None),
    "pool_removed": (410, None),
    "engine_refused": (503, OVERLOADED_RETRY_S),
    "engine_failed": (503, STARTING_RETRY_S),
    "context_length_exceeded": (400, None),
    "stream_not_found": (404, None),
    "stream_superseded": (410, None),
    "stream_abandoned": (410, None),
    "request_expired": (410, None),
    "permission_denied": (403, None),
}

_RESUMABLE = ("server_stopping",)
"""Codes of streams whose engines go on with them."""


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return _TYPES.get(HTTPStatus(status), "invalid_request_error")


def error_body(error: ApiError) -> dict[str, dict[str, object]]:
    """Returns the error as clients know it."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_json(error: ApiError) -> str:
    """Returns `error_body` as JSON."""
    return json.dumps(error_body(error), ensure_ascii=False)


def broken_off_json(error: PoolError) -> str:
    """Returns what a stream says that ends with a failure of the pool: `resumable` tells whether
    it goes on after its last event's id, at any web process, or must be sent again."""
    body = error_body(to_api_error(error))
    body["error"]["resumable"] = error.code in _RESUMABLE
    return json.dumps(body, ensure_ascii=False)


def to_api_error(error: PoolError) -> ApiError:
    """Returns what a client sees of a failure of the pool."""
    status, retry_after_s = _POOL_STATUS.get(error.code, (500, None))
    return ApiError(status, str(error), error.code, retry_after_s=retry_after_s)
