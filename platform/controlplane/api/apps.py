from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "controlplane.api"
    label = "management_api"
