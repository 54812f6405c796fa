"""`Idempotency-Key`: a POST that is sent again does nothing twice and gets the first one's answer.

The key is claimed before the work, by a row that only one can insert; work and answer are then
written in one transaction. Who comes meanwhile gets a 409 to repeat soon. A claim whose process
died is free again after a while. Only answers of success are kept, for a day, and without secrets:
those are nowhere in the database.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.models import IdempotentCall
from controlplane.api.problem import Problem

KEPT: Final = timedelta(hours=24)
CLAIM: Final = timedelta(seconds=60)
"""No call takes so long; a claim that is older belongs to a process that died."""
KEY_MAX_CHARS: Final = 255
HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
KEPT_HEADERS: Final = ("Location", "ETag", "Cache-Control")
FORGET_AT_ONCE: Final = 100
"""Old rows that one call deletes, so that the table shrinks faster than it grows."""


def once(
    request: Request,
    act: Callable[[], Response],
    *,
    secrets: tuple[str, ...] = (),
    keeps_refusals: bool = False,
) -> Response:
    """Returns `act`'s answer, or the one that it gave when the same call came before.

    `secrets`: fields of the answer that are null when it is given again. `keeps_refusals`: `act`
    writes rows that stay when it raises; then a process that dies in between may do it twice.
    Raises: Problem 400 for a bad key, 409 while the first call goes on, 422 for another call.
    """
    header = request.headers.get(HEADER)
    if header is None:
        return act()
    if not header.strip() or len(header) > KEY_MAX_CHARS:
        raise Problem(400, f"{HEADER}: expected 1 to {KEY_MAX_CHARS} characters.", param=HEADER)
    call = _claim(request.user.get_username(), _digest(header), _digest_of(request))
    if call.status is not None:
        headers = {**call.headers, REPLAYED: "true"}
        return Response(call.answer, status=call.status, headers=headers)
    try:
        with nullcontext() if keeps_refusals else transaction.atomic():
            response = act()
            _keep(call, response, secrets)
    except BaseException:
        IdempotentCall.objects.filter(pk=call.pk, claim=call.claim, status=None).delete()
        raise
    return response


def _claim(actor: str, key_digest: str, request_digest: str) -> IdempotentCall:
    """Returns the call, claimed or done."""
    now = timezone.now()
    _forget_old()
    mine = {"request_digest": request_digest, "claimed_at": now, "claim": uuid.uuid4().hex}
    about = {"actor": actor, "key_digest": key_digest}
    try:
        with transaction.atomic():
            return IdempotentCall.objects.create(**about, **mine)
    except IntegrityError:
        pass
    known = IdempotentCall.objects.filter(**about).first()
    if known is None:
        # The first one failed just now.
        raise _busy()
    if known.claimed_at < now - KEPT:
        known.delete()
        raise _busy()
    if known.request_digest != request_digest:
        raise Problem(
            422,
            f"{HEADER}: this key was used for another call (another path or body); take a new one.",
            code="idempotency_key_reused",
            param=HEADER,
        )
    if known.status is not None:
        return known
    is_dead = known.claimed_at < now - CLAIM
    rows = IdempotentCall.objects.filter(pk=known.pk, claim=known.claim, status=None)
    if is_dead and rows.update(**mine):
        known.refresh_from_db()
        return known
    raise _busy()


def _keep(call: IdempotentCall, response: Response, secrets: tuple[str, ...]) -> None:
    answer: Mapping[str, Any] = response.data
    kept = {name: None if name in secrets else value for name, value in answer.items()}
    headers = {n: response.headers[n] for n in KEPT_HEADERS if n in response.headers}
    is_mine = IdempotentCall.objects.filter(pk=call.pk, claim=call.claim, status=None).update(
        status=response.status_code, answer=json.loads(json.dumps(kept, default=str)),
        headers=headers,
    )  # fmt: skip
    if not is_mine:
        # Another process has taken the claim for dead: its work counts, ours is rolled back.
        raise _busy()


def _forget_old() -> None:
    old = IdempotentCall.objects.filter(claimed_at__lt=timezone.now() - KEPT)
    if ids := list(old.values_list("pk", flat=True)[:FORGET_AT_ONCE]):
        IdempotentCall.objects.filter(pk__in=ids).delete()


def _busy() -> Problem:
    return Problem(
        409,
        "A call with the same Idempotency-Key goes on; repeat this one in a second.",
        code="idempotency_key_in_use",
        param=HEADER,
        retry_after_s=1,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of(request: Request) -> str:
    body = json.dumps(request.data, sort_keys=True, default=str)
    return _digest(f"{request.method} {request.path}\n{body}")
