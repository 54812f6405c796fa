"""The web process: `uvicorn controlplane.asgi:application`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

# Models can be imported only from here on.
from controlplane.application import application  # noqa: E402

__all__ = ["application"]
