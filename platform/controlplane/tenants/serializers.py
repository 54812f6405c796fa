"""The shapes of the API of tenants, members and keys. Times are ISO 8601 in UTC."""

from datetime import timedelta
from typing import Final

from rest_framework import serializers

from controlplane.api.fields import BIGINT_MAX, INT_MAX, Number, Time, names, reason
from controlplane.api.pagination import PageQuery
from controlplane.api.shapes import PageSerializer
from controlplane.tenants.access import Role, Scope
from controlplane.tenants.models import CLASS_CHOICES, ApiKey, TenantState
from controlplane.tenants.services import ROTATION_MAX

CLASSES: Final = [value for value, _ in CLASS_CHOICES]
ROLES: Final = [role.value for role in Role]
SCOPES: Final = [scope.value for scope in Scope]
_DAY_S: Final = int(timedelta(days=1).total_seconds())
_ROTATION_MAX_S: Final = int(ROTATION_MAX.total_seconds())


def _limit(help_text: str, most: int = INT_MAX) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=1, max_value=most, allow_null=True, required=False, help_text=help_text
    )


class TenantSettings(serializers.Serializer[object]):
    """What may be set of a tenant at any time."""

    name = serializers.CharField(max_length=100)
    state = serializers.ChoiceField(
        TenantState.values, required=False, help_text="blocked: its requests and keys are refused."
    )
    allowed_models = names("Empty: all models.", required=False)
    default_class = serializers.ChoiceField(
        CLASSES, required=False, help_text="Of requests that do not say."
    )
    highest_class = serializers.ChoiceField(
        CLASSES, required=False, help_text="Requests that ask for a higher one get this one."
    )
    weight = Number(
        min_value=0.001,
        max_value=1000,
        required=False,
        help_text="Share within a class beside other tenants.",
    )
    requests_per_minute = _limit("Null: no limit.")
    tokens_per_minute = _limit("Prompt and output together; null: no limit.", BIGINT_MAX)
    concurrency = _limit("Requests at the same time; null: no limit.")
    monthly_budget = serializers.DecimalField(
        max_digits=14,
        decimal_places=4,
        min_value=0,
        allow_null=True,
        required=False,
        help_text="Cost in a calendar month (UTC); null: no limit.",
    )
    reason = reason()


class TenantInput(TenantSettings):
    slug = serializers.SlugField(max_length=50, help_text="In addresses; cannot be changed.")


class TenantOutput(serializers.Serializer[object]):
    slug = serializers.CharField()
    name = serializers.CharField()
    state = serializers.ChoiceField(TenantState.values)
    allowed_models = serializers.ListField(child=serializers.CharField(), help_text="Empty: all.")
    default_class = serializers.ChoiceField(CLASSES)
    highest_class = serializers.ChoiceField(CLASSES)
    weight = serializers.FloatField()
    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    concurrency = serializers.IntegerField(allow_null=True)
    monthly_budget = serializers.DecimalField(max_digits=14, decimal_places=4, allow_null=True)
    version = serializers.IntegerField(help_text="Also the ETag.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class TenantsOutput(PageSerializer):
    data = TenantOutput(many=True)


class TenantsQuery(PageQuery):
    state = serializers.ChoiceField(TenantState.values, required=False)
    q = serializers.CharField(
        max_length=100, required=False, help_text="A part of the name or the slug."
    )


class MemberInput(serializers.Serializer[object]):
    role = serializers.ChoiceField(ROLES)
    reason = reason()


class MemberOutput(serializers.Serializer[object]):
    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(ROLES)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class MembersOutput(PageSerializer):
    data = MemberOutput(many=True)


class KeySettings(serializers.Serializer[object]):
    """What may be set of a key."""

    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(SCOPES),
        min_length=1,
        max_length=len(SCOPES),
        required=False,
        help_text="inference: /v1; read: GET on /api/v1; manage: all of the tenant's /api/v1.",
    )
    allowed_models = names("Empty: all that the tenant may use.", required=False)
    allowed_networks = names("Addresses and networks, as 10.0.0.0/8; empty: any.", required=False)
    expires_at = Time(allow_null=True, required=False, help_text="Null: never.")
    reason = reason()


class KeyInput(KeySettings):
    pass


class KeyRotateInput(serializers.Serializer[object]):
    overlap_s = serializers.IntegerField(
        min_value=1,
        max_value=_ROTATION_MAX_S,
        default=_DAY_S,
        help_text="How long the old secret still works; default: a day.",
    )
    reason = reason()


class KeyOutput(serializers.Serializer[object]):
    public_id = serializers.CharField(help_text="Its name in addresses; no secret.")
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.slug")
    hint = serializers.CharField(help_text="sk-... and the secret's last four characters.")
    state = serializers.SerializerMethodField()
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))
    allowed_models = serializers.ListField(child=serializers.CharField())
    allowed_networks = serializers.ListField(child=serializers.CharField())
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    old_until = serializers.DateTimeField(
        allow_null=True, help_text="Until then the secret before the last rotation works too."
    )
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="Exact to a minute.")
    version = serializers.IntegerField(help_text="Also the ETag.")

    def get_state(self, key: ApiKey) -> str:
        """active, expired or revoked"""
        if key.revoked_at is not None:
            return "revoked"
        return "active" if key.is_live else "expired"


class NewKeyOutput(KeyOutput):
    key = serializers.SerializerMethodField(
        help_text="The key itself, only this once; null when an Idempotency-Key repeats the answer."
    )

    def get_key(self, key: ApiKey) -> str | None:
        text: str = self.context["text"]
        return text


class KeysOutput(PageSerializer):
    data = KeyOutput(many=True)


class KeysQuery(PageQuery):
    state = serializers.ChoiceField(["active", "expired", "revoked"], required=False)
    scope = serializers.ChoiceField(SCOPES, required=False)
    q = serializers.CharField(
        max_length=100, required=False, help_text="A part of the name, or the public id."
    )


class OwnRoleOutput(serializers.Serializer[object]):
    tenant = serializers.CharField(help_text="Slug.")
    name = serializers.CharField()
    role = serializers.ChoiceField(ROLES)


class MeOutput(serializers.Serializer[object]):
    who = serializers.CharField(help_text="A user's name, or key:<public id>.")
    kind = serializers.ChoiceField(["user", "key"])
    platform_role = serializers.ChoiceField(
        ROLES, allow_null=True, help_text="Of the whole installation; null: none."
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(SCOPES), help_text="Of a key; empty for a user."
    )
    tenants = OwnRoleOutput(many=True, help_text="Those of which the caller is a member.")


class UseOutput(serializers.Serializer[object]):
    used = serializers.DecimalField(max_digits=24, decimal_places=8)
    reserved = serializers.DecimalField(
        max_digits=24,
        decimal_places=8,
        help_text="By requests under way, beyond what they have used so far.",
    )
    limit = serializers.DecimalField(
        max_digits=24, decimal_places=8, allow_null=True, help_text="Null: none."
    )
    resets_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When all of it is free if nothing more comes; null: as requests end.",
    )


class LimitsOutput(serializers.Serializer[object]):
    requests_per_minute = UseOutput()
    tokens_per_minute = UseOutput()
    concurrency = UseOutput()
    monthly_budget = UseOutput()
    at = serializers.DateTimeField()
