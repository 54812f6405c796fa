"""`manage.py doctor [--json] [--url URL]`: checks a running installation as a user would.

Exit code 0 when all is well, 1 otherwise. It finds what `make up` started by var/run/state.json, so
it works from any shell; elsewhere it takes the settings from the environment, like every part.
"""

import asyncio
import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.fleet.doctor.http_checks import HttpChecks
from controlplane.fleet.doctor.key import doctor_key
from controlplane.fleet.doctor.pool_checks import PoolChecks
from controlplane.fleet.doctor.report import Check, CheckResult, Problem, run_checks
from controlplane.fleet.management.installation import enter_installation

DEFAULT_URL: Final = "http://127.0.0.1:8000"


class Command(BaseCommand):
    help = "Checks a running installation and says what is wrong and what to do."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="results for machines")
        parser.add_argument("--url", help="where the web server is, e.g. http://host:8000")

    def handle(self, *args: Any, **options: Any) -> None:
        found = enter_installation()
        url = options["url"] or (found.url if found else DEFAULT_URL)
        with doctor_key() as key:
            results = asyncio.run(_examine(url.rstrip("/"), key, self._teller(options["json"])))
        is_well = all(result.ok for result in results)
        if options["json"]:
            body = {"ok": is_well, "url": url, "checks": [asdict(result) for result in results]}
            self.stdout.write(json.dumps(body, indent=2))
        else:
            failed = sum(not result.ok for result in results)
            self.stdout.write("All is well." if is_well else f"{failed} checks failed.")
        sys.exit(0 if is_well else 1)

    def _teller(self, is_json: bool) -> Any:
        def tell(result: CheckResult) -> None:
            if is_json:
                return
            mark = self.style.SUCCESS("ok    ") if result.ok else self.style.ERROR("FAILED")
            self.stdout.write(
                f"{mark} {result.name:<10} {result.duration_ms:7.0f} ms  {result.detail}"
            )
            if result.to_do:
                self.stdout.write(f"{'':30}-> {result.to_do}")

        return tell


async def _examine(url: str, key: str, tell: Any) -> list[CheckResult]:
    async def key_check() -> str:
        if not key:
            raise Problem("no key could be made", "check DATABASE_URL")
        return "made, is revoked at the end"

    inside, outside = PoolChecks(settings.POOL), HttpChecks(url, key)
    try:
        checks = [*inside.checks(), Check("key", key_check), *outside.checks()]
        return await run_checks(checks, tell)
    finally:
        await outside.close()
        await inside.close()
