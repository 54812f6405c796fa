"""A form that must not do its work twice, however often it is sent.

The form carries a random id, which one press takes, in the transaction of the work: another press
waits for that transaction and is then too late.
"""

import hashlib
from typing import Final

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from controlplane.api.models import IdempotentCall
from web.views.access import PageRequest

SEE_OTHER: Final = 303


def once(request: PageRequest, form_id: str) -> None:
    """Takes the form's id. Call it inside a transaction.

    Raises: ValidationError when an earlier press has taken it.
    """
    digest = hashlib.sha256(form_id.encode()).hexdigest()
    try:
        with transaction.atomic():
            IdempotentCall.objects.create(
                actor=f"page:{request.access.who}"[:160], key_digest=digest,
                request_digest="", claim="", status=SEE_OTHER,
            )  # fmt: skip
    except IntegrityError:
        raise ValidationError(
            "This form was sent twice: the first press did it, and the secret was in its answer"
            " alone. If you have not seen it, rotate the key or make another one."
        ) from None
