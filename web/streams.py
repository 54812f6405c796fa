"""Long answers, sent while they are made."""

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

BATCH_LINES: Final = 500
"""Lines that are made at a time: a thread is asked for each batch, not for each line."""


def csv_response(request: HttpRequest, lines: Iterator[str], name: str) -> StreamingHttpResponse:
    """Returns a file `name` that is downloaded; it is never in memory as a whole."""
    body = _in_batches(lines) if isinstance(request, ASGIRequest) else lines
    response = StreamingHttpResponse(body, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    return response


async def _in_batches(lines: Iterator[str]) -> AsyncIterator[str]:
    while batch := await sync_to_async(_next)(lines):
        yield batch


def _next(lines: Iterator[str]) -> str:
    return "".join(islice(lines, BATCH_LINES))
