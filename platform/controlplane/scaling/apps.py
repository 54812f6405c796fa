from django.apps import AppConfig


class ScalingConfig(AppConfig):
    name = "controlplane.scaling"
    label = "scaling"
    default_auto_field = "django.db.models.BigAutoField"
