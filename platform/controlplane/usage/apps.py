from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "controlplane.usage"
    verbose_name = "Usage and SLOs"
