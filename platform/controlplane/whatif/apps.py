from django.apps import AppConfig


class WhatIfConfig(AppConfig):
    name = "controlplane.whatif"
    verbose_name = "What if"
