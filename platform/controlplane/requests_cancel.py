"""Ends a running request that another web process may serve, for pages and REST.

The engines that have it are told, also one that it moves to at that moment. Its stream ends with
the finish reason `abort`, and what it had used is billed.
"""

from collections.abc import Sequence
from typing import Final

from asgiref.sync import async_to_sync

from controlplane.audit.models import AuditResult
from controlplane.audit.services import audit_write
from controlplane.errors import NotVisible, Refused
from controlplane.gateway.live_requests import SentRequest, public_id, sent_request
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant
from engine_pool.client import PoolClient, pool_client, served_clients

ACTION: Final = "cancel_request"


class RequestEnded(Refused):
    """There is nothing left to cancel."""

    code = "request_ended"


def request_cancel(*, access: Access, request_id: str, reason: str = "") -> None:
    """Ends a request, all of its choices; its engines stop within a second.

    `request_id`: as the client saw it, or one of its engine requests. Needs an operator of its
    tenant, or of the platform. Raises: NotVisible, NotAllowed; RequestEnded; StoreUnavailable.
    A request that waits in a web process for an instance (late binding) is known to no other
    process, and not found here.
    """
    name = public_id(request_id)
    record = RequestRecord.objects.filter(request_id=name).first()
    sent = None if record is not None else sent_request(name)
    tenant_id = record.tenant_id if record else sent.facts.tenant_id if sent else None
    missing = NotVisible(f"There is no request {request_id!r}.")
    if tenant_id is None or access.role_in(tenant_id) is None:
        raise missing
    access.require(Role.OPERATOR, tenant_id)
    tenant = Tenant.objects.filter(pk=tenant_id).values_list("slug", flat=True).first() or ""
    if sent is None:
        ended = RequestEnded(f"The request {name} has ended already.")
        _audit(access, name, tenant, tenant_id, reason, AuditResult.REFUSED, str(ended))
        raise ended
    async_to_sync(_abort)(_clients(sent.facts.pool), sent)
    _audit(access, name, tenant, tenant_id, reason, AuditResult.DONE)


def _clients(pool: str) -> list[PoolClient]:
    """Returns the pool's client; all of them when the record's pool is not known here."""
    served = served_clients()
    return [c for c in served if c.config.pool == pool] or list(served) or [pool_client()]


async def _abort(clients: Sequence[PoolClient], sent: SentRequest) -> None:
    # In the event loop that follows the pool: the views belong to it.
    for client in clients:
        for engine_id, instance in sent.places.items():
            client.dispatcher.abort_anywhere(engine_id, instance)


def _audit(
    access: Access,
    name: str,
    tenant: str,
    tenant_id: int,
    reason: str,
    result: AuditResult,
    detail: str = "",
) -> None:
    audit_write(
        access=access, action=ACTION, object=name, tenant=tenant, tenant_id=tenant_id,
        reason=reason, result=result, detail=detail, request_id=name,
    )  # fmt: skip
