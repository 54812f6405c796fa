"""People in the admin: their accounts with one role each, and who tried to log in from where."""

from typing import Any

from axes.models import AccessAttempt, AccessLog
from axes.utils import reset
from django import forms
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminSelectWidget

from controlplane.admin_actions import Action, confirmed
from controlplane.admin_base import HistoryAdmin, ReasonForm, RoleAdmin
from controlplane.audit.models import AuditEntry
from controlplane.audit.services import audit_write
from controlplane.tenants.access import Access, Role
from controlplane.tenants.user_services import (
    PLATFORM_ROLES,
    role_of,
    user_create,
    user_set_password,
    user_update,
)

admin.site.unregister([User, Group])


class UserForm(ReasonForm):
    role = forms.ChoiceField(
        required=False,
        choices=[("", "none: only in tenants"), *((r.value, r.value) for r in PLATFORM_ROLES)],
        widget=UnfoldAdminSelectWidget,
        help_text="On the platform: viewer sees all, operator runs it, owner may do everything.",
    )
    new_password = forms.CharField(
        required=False,
        strip=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="At least 12 characters. Empty: it stays as it is.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and "role" in self.fields:
            self.initial["role"] = _word(role_of(self.instance))

    @property
    def wanted_role(self) -> Role | None:
        word = self.cleaned_data.get("role")
        return Role(word) if word else None


@admin.register(User)
class UserAdmin(RoleAdmin):
    """Operators see who there is; owners change it."""

    form = UserForm
    change_role = Role.OWNER
    list_display = ["username", "shown_role", "email", "is_active", "last_login"]
    list_filter = ["is_active", "is_superuser", "is_staff"]
    search_fields = ["username", "email"]
    ordering = ["username"]
    actions = ["close"]
    fieldsets = [
        (None, {"fields": ["username", "email", "role", "is_active", "new_password"]}),
        ("Known", {"fields": ["last_login", "date_joined"]}),
        ("This change", {"fields": ["reason"]}),
    ]

    @display(description="role")
    def shown_role(self, user: User) -> str:
        return _word(role_of(user)) or "none"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["last_login", "date_joined", *([] if obj is None else ["username"])]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if self.has_change_permission(request, obj):
            return super().get_fieldsets(request, obj)
        shown = ["username", "email", "shown_role", "is_active", "last_login", "date_joined"]
        return [(None, {"fields": shown})]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> User:
        password = form.cleaned_data["new_password"]
        if is_new:
            return user_create(
                access=access, username=row.username, password=password, email=row.email,
                role=form.wanted_role, reason=form.why,
            )  # fmt: skip
        changes = form.changes(["email", "is_active"])
        if "role" in form.changed_data:
            changes["role"] = form.wanted_role
        user = user_update(access=access, user=row, changes=changes, reason=form.why)
        if password:
            user_set_password(access=access, user=user, password=password, reason=form.why)
        return user

    def entries_about(self, row: User) -> "QuerySet[AuditEntry]":
        names = ["user_create", "user_update", "user_password", "password_change", "login_locked"]
        return AuditEntry.objects.filter(object=row.username, action__in=names)

    @admin.action(description="Close the selected accounts", permissions=["change"])
    def close(self, request: HttpRequest, rows: "QuerySet[User]") -> HttpResponse | None:
        def act(access: Access, user: User, reason: str) -> None:
            user_update(access=access, user=user, changes={"is_active": False}, reason=reason)

        action = Action(
            "close", "Close", "These people can no longer log in, and their sessions end.", act
        )
        return confirmed(self, request, rows, action)


@admin.register(Group)
class GroupAdmin(HistoryAdmin):
    """Groups follow from the roles: they are looked at."""

    list_display = ["name"]
    search_fields = ["name"]
    fields = ["name"]


@admin.register(AccessAttempt)
class AccessAttemptAdmin(HistoryAdmin):
    """Failed logins of the last minutes; owners may end a wait."""

    list_display = ["attempt_time", "username", "ip_address", "failures_since_start", "path_info"]
    search_fields = ["username", "ip_address"]
    fields = ["attempt_time", "username", "ip_address", "user_agent", "failures_since_start"]
    actions = ["forgive"]

    def has_forgive_permission(self, request: HttpRequest) -> bool:
        return self.access_of(request).allows(Role.OWNER)

    @admin.action(description="End the wait of the selected", permissions=["forgive"])
    def forgive(self, request: HttpRequest, rows: "QuerySet[AccessAttempt]") -> HttpResponse | None:
        def act(access: Access, attempt: AccessAttempt, reason: str) -> None:
            access.require(Role.OWNER)
            reset(username=attempt.username, ip=attempt.ip_address)
            name = attempt.username or "anonymous"
            audit_write(access=access, action="login_unlocked", object=name, reason=reason)

        action = Action(
            "forgive", "End the wait", "These people may try to log in again.", act, False
        )
        return confirmed(self, request, rows, action)


@admin.register(AccessLog)
class AccessLogAdmin(HistoryAdmin):
    list_display = ["attempt_time", "username", "ip_address", "path_info", "logout_time"]
    search_fields = ["username", "ip_address"]
    fields = ["attempt_time", "username", "ip_address", "user_agent", "path_info", "logout_time"]


def _word(role: Role | None) -> str:
    return "" if role is None else role.value
