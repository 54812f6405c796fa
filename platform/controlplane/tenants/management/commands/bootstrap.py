"""`manage.py bootstrap --url URL`: the first operator, the first tenant and its key, once."""

import json
import os
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.fleet.pool_services import pool_first_ensure
from controlplane.tenants.first_login import SETUP, first_login_create


class Command(BaseCommand):
    help = "Creates the first operator, tenant, key, pool, unless there are some. Safe to repeat."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--url", required=True, help="where the pages are, e.g. http://host:8000"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        pool_first_ensure(access=SETUP, config=settings.POOL)
        created = first_login_create()
        if created is None:
            self.stdout.write("Operator and tenant are there already.")
            return
        path = settings.VAR_DIR / "first-login.json"
        body = {"url": options["url"], **created}
        # Never readable for others, not even for the moment before a chmod.
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(body, file, indent=2)
            file.write("\n")
        self.stdout.write(f"Wrote the first login and key to {path}.")
