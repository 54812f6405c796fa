"""The shapes of the API of the audit."""

from typing import Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.api.fields import Time
from controlplane.api.pagination import PageQuery
from controlplane.api.shapes import PageSerializer
from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.audit.services import masked

_VALUES: Final = {"type": "object", "additionalProperties": {}, "nullable": True}


class AuditQuery(PageQuery):
    who = serializers.CharField(
        max_length=150, required=False, help_text="A user's name, or key:<public id>."
    )
    action = serializers.CharField(max_length=64, required=False, help_text="As key_revoke.")
    object = serializers.CharField(max_length=200, required=False)
    tenant = serializers.CharField(max_length=50, required=False, help_text="Slug.")
    result = serializers.ChoiceField(AuditResult.values, required=False)
    since = Time(required=False)
    until = Time(required=False)
    q = serializers.CharField(
        max_length=200,
        required=False,
        help_text="In the object, the reason or the detail; or the beginning of a request's id.",
    )
    format = serializers.ChoiceField(["json", "csv"], required=False)


class AuditOutput(serializers.Serializer[object]):
    at = serializers.DateTimeField()
    who = serializers.CharField()
    role = serializers.CharField(help_text="By which it was allowed.")
    action = serializers.CharField()
    object = serializers.CharField(help_text="What it was done to.")
    tenant = serializers.CharField(help_text="Slug; empty: the installation's own.")
    reason = serializers.CharField()
    result = serializers.ChoiceField(AuditResult.values)
    detail = serializers.CharField(help_text="Why it was refused or failed.")
    request_id = serializers.CharField(help_text="The request to a model that it was done to.")
    http_request_id = serializers.CharField(help_text="X-Request-Id of the call that did it.")
    migration_id = serializers.CharField()
    before = serializers.SerializerMethodField()
    after = serializers.SerializerMethodField()

    @extend_schema_field(_VALUES)
    def get_before(self, entry: AuditEntry) -> dict[str, object] | None:
        return masked(entry.before)

    @extend_schema_field(_VALUES)
    def get_after(self, entry: AuditEntry) -> dict[str, object] | None:
        return masked(entry.after)


class AuditsOutput(PageSerializer):
    data = AuditOutput(many=True)
