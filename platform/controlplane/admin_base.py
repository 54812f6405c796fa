"""What every admin page here has in common: it is a door to the services, no way around them.

The platform's role says what one may do, not Django's model permissions. Changes go through
services, which check the role again, the version, and write the audit; nothing else is saved.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from controlplane.admin_history import Change, changes_of
from controlplane.audit.models import AuditEntry
from controlplane.errors import Refused, VersionConflict
from controlplane.middleware import request_id_of
from controlplane.tenants.access import Access, Role, access_of_user, platform_role
from controlplane.tenants.models import Versioned

ROWS_MAX: Final = 10_000
"""Rows that a list counts and pages through: one looks further with a filter, not on page 5000."""
HISTORY_MAX: Final = 200
"""Changes that the history of one object shows."""
HIDDEN: Final = ("seen_version", "reason")
REFUSAL: Final = "ferry.refusal"
"""Key in a request's META: why the service has refused what the form says."""


class CappedPaginator(Paginator):
    """Counts no further than ROWS_MAX: counting ten million rows takes seconds on each page."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[:ROWS_MAX].count()
        return min(len(rows), ROWS_MAX)


class ReasonForm(forms.ModelForm):
    """A form that knows which version the person has seen, and asks why."""

    reason = forms.CharField(
        required=False,
        max_length=500,
        widget=UnfoldAdminTextInputWidget,
        help_text="Why; it stands in the audit.",
    )
    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "seen_version" in self.fields and self.instance.pk:
            self.fields["seen_version"].initial = getattr(self.instance, "version", None)

    def changes(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns those of the fields that the person has changed."""
        return {n: self.cleaned_data[n] for n in names if n in self.changed_data}

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns those of the fields that the form has."""
        return {n: self.cleaned_data[n] for n in names if n in self.cleaned_data}

    @property
    def why(self) -> str:
        return str(self.cleaned_data.get("reason", ""))

    @property
    def version(self) -> int | None:
        seen: int | None = self.cleaned_data.get("seen_version")
        return seen


class RoleAdmin(ModelAdmin):
    """Rows that people with the role look at, and change by `row_saved` and `row_deleted`."""

    form = ReasonForm
    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    warn_unsaved_form = True
    compressed_fields = True
    view_role: ClassVar[Role] = Role.OPERATOR
    change_role: ClassVar[Role] = Role.OPERATOR
    can_add: ClassVar[bool] = True
    can_delete: ClassVar[bool] = False

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> Model:
        """Makes or changes the row by a service and returns it."""
        raise NotImplementedError

    def row_deleted(self, access: Access, row: Any) -> None:
        """Deletes the row by a service."""
        raise NotImplementedError

    def entries_about(self, row: Any) -> "QuerySet[AuditEntry]":
        """Returns what the audit has about the row, newest first."""
        return AuditEntry.objects.filter(object=str(row)[:200])

    def access_of(self, request: HttpRequest) -> Access:
        return access_of_user(request.user, request_id_of(request))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        saved = self.row_saved(self.access_of(request), obj, form, not change)
        # The admin goes on with this object: it must be the row as it is now.
        obj.__dict__.update(saved.__dict__)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Saves nothing more: the service has done it all."""

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.row_deleted(self.access_of(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> None:
        for row in queryset:
            self.delete_model(request, row)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except (Refused, ValidationError) as error:
            # Once more, so that the form comes back with what was typed and why it was refused.
            request.META[REFUSAL] = sentence(error)
            return super().changeform_view(request, object_id, form_url, extra_context)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        refusal = request.META.get(REFUSAL)
        if refusal is None:
            return form

        class RefusedForm(form):
            def clean(self) -> None:
                super().clean()
                self.add_error(None, refusal)

        return RefusedForm

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> Any:
        try:
            return super().delete_view(request, object_id, extra_context)
        except (Refused, ValidationError) as error:
            return refused(request, error, request.get_full_path())

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        if request.method != "POST":
            return super().changelist_view(request, extra_context)
        try:
            with transaction.atomic():
                return super().changelist_view(request, extra_context)
        except (Refused, ValidationError) as error:
            return refused(request, error, request.get_full_path())

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Shows the object's rows of the audit, each with what it changed."""
        row = self.get_object(request, object_id)
        if row is None:
            return HttpResponseRedirect("../../")
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        entries = self.entries_about(row)[:HISTORY_MAX]
        context = {
            **self.admin_site.each_context(request),
            "title": f"Changes of {row}",
            "opts": self.opts,
            "object": row,
            "changes": [(entry, _changes(entry)) for entry in entries],
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin_pages/history.html", context)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Sequence[Any]:
        fields = list(super().get_fields(request, obj))
        may = self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        return fields if may else [name for name in fields if name not in HIDDEN]

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Writes nothing: the audit has it, by the service."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Writes nothing: the audit has it, by the service."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Writes nothing: the audit has it, by the service."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _covers(request, self.view_role)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.can_add and _covers(request, self.change_role)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _covers(request, self.change_role)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.can_delete and _covers(request, self.change_role)


class HistoryAdmin(RoleAdmin):
    """Rows that tell what was: they are looked at, never edited."""

    can_add = False
    actions = None

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def refused(request: HttpRequest, error: Exception, back: str) -> HttpResponse:
    """Says why nothing was changed, and goes back."""
    messages.error(request, sentence(error))
    return HttpResponseRedirect(back)


def sentence(error: Exception) -> str:
    """Returns an error as a sentence, of wrong values with the fields' names."""
    if not isinstance(error, ValidationError):
        return str(error)
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    fields: Mapping[str, list[str]] = error.message_dict
    return "; ".join(f"{name}: {' '.join(texts)}" for name, texts in fields.items())


def check_version(row: Versioned, seen: int | None) -> None:
    """Raises: VersionConflict. For services that do not look themselves."""
    if seen is not None and row.version != seen:
        raise VersionConflict(str(row), row.version)


def _covers(request: HttpRequest, role: Role) -> bool:
    found = platform_role(request.user)
    return found is not None and found.covers(role)


def _changes(entry: AuditEntry) -> list[Change]:
    return changes_of(entry.before, entry.after)
