"""The shapes that all of /api/v1 shares."""

from rest_framework import serializers

from controlplane.api.fields import reason


class ErrorBodySerializer(serializers.Serializer[object]):
    message = serializers.CharField(help_text="One sentence; names the field that is wrong.")
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True, help_text="The field that is wrong.")
    code = serializers.CharField(allow_null=True, help_text="A slug.")


class ErrorSerializer(serializers.Serializer[object]):
    error = ErrorBodySerializer()


class PageSerializer(serializers.Serializer[object]):
    """What every list has beside its `data`."""

    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(
        allow_null=True, help_text="Send it as `cursor` for the next page; null: there is none."
    )


class ReasonInput(serializers.Serializer[object]):
    reason = reason()
