"""Tenants and keys in the admin. A secret is shown once, in the message after a key was made."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from controlplane.tenants.access import access_of_user
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import key_create, key_revoke


@admin.register(Tenant)
class TenantAdmin(ModelAdmin):
    list_display = ["name", "slug", "highest_class", "state", "created_at"]
    search_fields = ["name", "slug"]
    readonly_fields = ["created_at"]


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    list_display = ["name", "tenant", "hint", "expires_at", "revoked_at", "last_used_at"]
    list_filter = ["tenant"]
    search_fields = ["name", "public_id"]
    fields = ["tenant", "name", "expires_at", "hint", "created_at", "revoked_at", "last_used_at"]
    readonly_fields = ["hint", "created_at", "revoked_at", "last_used_at"]
    actions = ["revoke"]

    def save_model(self, request: HttpRequest, obj: ApiKey, form: ModelForm, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        key, text = key_create(
            access=access_of_user(request.user),
            tenant=obj.tenant,
            name=obj.name,
            expires_at=obj.expires_at,
        )
        # The admin goes on with this object: it must be the row that was made.
        obj.pk = key.pk
        messages.warning(request, f"Copy the key now, it is not shown again: {text}")

    @admin.action(description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            key_revoke(access=access_of_user(request.user), key=key)
        messages.success(request, f"Revoked {len(queryset)} keys.")

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        # A revoked key stays, so that it is known whose it was.
        return False
