"""Who may see and do what in a tenant."""

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import NotVisible
from controlplane.tenants.access import Role
from controlplane.tenants.models import Membership, Tenant
from controlplane.tenants.selectors import members_list
from controlplane.tenants.services import member_remove, member_set
from web.tenant_dialog import Dialog, show_dialog, submit
from web.tenant_forms import ConfirmForm, MemberForm, RoleForm
from web.views.access import PageRequest, tenant_view
from web.views.ledger import see
from web.views.tenants import show_tab


@tenant_view(Role.VIEWER)
@require_safe
def members(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Lists the members; owners can be changed by owners alone."""
    found = members_list(access=request.access, tenant=tenant)
    may_own = request.access.allows(Role.OWNER, tenant.pk)
    may_manage = request.access.allows(Role.TENANT_ADMIN, tenant.pk)
    rows = [
        (member, may_manage and (may_own or member.role != Role.OWNER))
        for member in sorted(found, key=lambda m: (-Role(m.role).rank, m.user.get_username()))
    ]
    context = {"page": "tenant-members", "rows": rows}
    return show_tab(request, tenant, "members", "tenants/members.html", context)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def add(request: PageRequest, tenant: Tenant) -> HttpResponse:
    dialog = Dialog(
        title=f"Add a member to {tenant.name}",
        what="They see this tenant the next time they load a page.",
        verb="Add",
        back=_members_url(tenant),
        page="tenant-members",
        undo="Undo: remove them.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, MemberForm(initial={"role": Role.VIEWER.value}))
    form = MemberForm(request.POST)

    def act() -> HttpResponse:
        values = form.values
        user = get_user_model().objects.filter(username=values["username"], is_active=True).first()
        if user is None:
            raise ValidationError({"username": "There is no account of this name."})
        if members_list(access=request.access, tenant=tenant).filter(user=user).exists():
            raise ValidationError({"username": "Is a member already; change the role in the list."})
        member_set(
            access=request.access, tenant=tenant, user=user, role=Role(values["role"]),
            reason=form.why,
        )  # fmt: skip
        return see("web:tenant-members", tenant.slug)

    return submit(request, dialog, form, act)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def role(request: PageRequest, tenant: Tenant, username: str) -> HttpResponse:
    member = _member_of(request, tenant, username)
    _check_owner(request, tenant, member)
    dialog = Dialog(
        title=f"Another role for {username}?",
        what=f"In {tenant.name} alone. It counts from their next page on.",
        verb="Set the role",
        back=_members_url(tenant),
        page="tenant-members",
        facts=(("Now", member.role.replace("_", " ")),),
        undo="Undo: set it back.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, RoleForm(initial={"role": member.role}))
    form = RoleForm(request.POST)

    def act() -> HttpResponse:
        wanted = Role(form.values["role"])
        member_set(
            access=request.access, tenant=tenant, user=member.user, role=wanted, reason=form.why
        )
        return see("web:tenant-members", tenant.slug)

    return submit(request, dialog, form, act)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: PageRequest, tenant: Tenant, username: str) -> HttpResponse:
    member = _member_of(request, tenant, username)
    _check_owner(request, tenant, member)
    dialog = Dialog(
        title=f"Remove {username} from {tenant.name}?",
        what="They no longer see this tenant. The account stays, and so do the keys they made.",
        verb=f"Remove {username}",
        back=_members_url(tenant),
        page="tenant-members",
        grade="C",
        facts=(("Role", member.role.replace("_", " ")),),
        undo="Undo: add them again.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, ConfirmForm(expected=username))
    form = ConfirmForm(request.POST, expected=username)

    def act() -> HttpResponse:
        member_remove(access=request.access, member=member, reason=form.why)
        return see("web:tenant-members", tenant.slug)

    return submit(request, dialog, form, act)


def _member_of(request: PageRequest, tenant: Tenant, username: str) -> Membership:
    found = members_list(access=request.access, tenant=tenant).filter(user__username=username)
    member = found.select_related("tenant", "user").first()
    if member is None:
        raise NotVisible(f"{tenant.name} has no such member.")
    return member


def _check_owner(request: PageRequest, tenant: Tenant, member: Membership) -> None:
    """Raises: NotAllowed for an owner, unless an owner asks."""
    if member.role == Role.OWNER:
        request.access.require(Role.OWNER, tenant.pk)


def _members_url(tenant: Tenant) -> str:
    return reverse("web:tenant-members", args=[tenant.slug])
