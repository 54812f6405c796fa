"""`ETag` and `If-Match`: a change says which version it is a change of.

The ETag is the row's version, and strong: equal ones stand for equal settings. It does not cover
what only happens to the row (a key's last use). Who wants to overwrite whatever is there says so
with `If-Match: *`; a change without the header is refused (428), one of an older version too (412).
"""

import re
from typing import Final

from rest_framework.request import Request

from controlplane.api.problem import Problem
from controlplane.tenants.models import Versioned

_ETAG: Final = re.compile(r'(?:W/)?"([!#-~]*)"')
NONE_SUCH: Final = 0
"""No row has this version: they begin with 1."""


def etag_of(row: Versioned) -> dict[str, str]:
    """Returns the header that names a row's version."""
    return {"ETag": f'"{row.version}"'}


def wanted_version(request: Request, *, is_required: bool = True) -> int | None:
    """Returns the version that a change is meant for; None: any.

    Weak ETags count: proxies that compress make them of strong ones.
    Raises: Problem 428 without the header, 400 when it is no ETag.
    """
    header = request.headers.get("If-Match")
    if header is None:
        if not is_required:
            return None
        raise Problem(
            428,
            "Send If-Match with the ETag of what you have read, or `*` to overwrite anything.",
            code="precondition_required",
            param="If-Match",
        )
    if header.strip() == "*":
        return None
    found = _ETAG.fullmatch(header.strip())
    if found is None:
        raise Problem(400, 'If-Match: expected one ETag, as "3", or *.', param="If-Match")
    text = found[1]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else NONE_SUCH
