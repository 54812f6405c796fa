"""CSV beside JSON: by `?format=csv`, or by `Accept: text/csv`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.http import StreamingHttpResponse
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

CSV: Final = "text/csv"


class CsvRenderer(BaseRenderer):
    """Names the type for the negotiation; views that offer it stream the lines themselves."""

    media_type = CSV
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Raises: TypeError, as the lines never come this way."""
        raise TypeError("CSV is streamed")


WITH_CSV: Final = (JSONRenderer, CsvRenderer)


def wants_csv(request: Request) -> bool:
    return bool(request.accepted_renderer.format == CsvRenderer.format)


def csv_response(lines: Iterator[str], name: str) -> StreamingHttpResponse:
    """Returns a file to be saved under a name, line by line."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingHttpResponse(lines, content_type=f"{CSV}; charset=utf-8", headers=headers)
