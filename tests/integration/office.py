"""Whoever manages tenants of an installation: a process with its settings that does as it is told.

Run as a module it reads one JSON command a line and answers each by one JSON line.
"""

import json
import os
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.integration.installation import Installation


class Office:
    """The asking side. Use it in a `with`."""

    def __init__(self, installation: "Installation") -> None:
        root = os.getcwd()
        environ = installation.environ | installation.state.environ
        environ |= {"PYTHONPATH": f"{root}:{root}/platform"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.office"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Office":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)

    def tenant(self, slug: str, **limits: Any) -> dict[str, str]:
        """Makes a tenant with a key; returns the key's header."""
        return {"Authorization": f"Bearer {self._do('tenant', slug=slug, changes=limits)}"}

    def change(self, slug: str, **changes: Any) -> None:
        """Changes a tenant."""
        self._do("change", slug=slug, changes=changes)

    def rotate(self, slug: str, for_s: float) -> dict[str, str]:
        """Gives a tenant's key a new secret; the old one works for so long."""
        return {"Authorization": f"Bearer {self._do('rotate', slug=slug, for_s=for_s)}"}

    def revoke(self, slug: str) -> None:
        """Revokes a tenant's keys."""
        self._do("revoke", slug=slug)

    def tenant_id(self, slug: str) -> int:
        return int(self._do("id", slug=slug))

    def price(self, model: str, per_million: str) -> None:
        """Sets one price for all tokens of a model, from now on."""
        self._do("price", model=model, per_million=per_million)

    def _do(self, what: str, **fields: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the office broke"
        return json.loads(line)


def _serve() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    from django.utils import timezone

    from controlplane.tenants import services
    from controlplane.tenants.access import Access, Role
    from controlplane.tenants.models import ApiKey, Tenant
    from controlplane.usage.prices import price_set

    access = Access("office", platform=Role.OWNER)

    def do(what: str, fields: dict[str, Any]) -> Any:
        if what == "tenant":
            slug = fields["slug"]
            tenant = services.tenant_create(access=access, name=slug, slug=slug)
            services.tenant_update(access=access, tenant=tenant, changes=fields["changes"])
            return services.key_create(access=access, tenant=tenant, name="k")[1]
        if what == "price":
            each = Decimal(fields["per_million"])
            price_set(
                access=access, model=fields["model"], valid_from=timezone.now(),
                prompt_per_million=each, cached_per_million=each, output_per_million=each,
            )  # fmt: skip
            return None
        tenant = Tenant.objects.get(slug=fields["slug"])
        if what == "change":
            services.tenant_update(access=access, tenant=tenant, changes=fields["changes"])
        elif what == "revoke":
            for key in ApiKey.objects.filter(tenant=tenant):
                services.key_revoke(access=access, key=key)
        elif what == "rotate":
            until = timezone.now() + timedelta(seconds=fields["for_s"])
            key = ApiKey.objects.get(tenant=tenant)
            return services.key_rotate(access=access, key=key, old_until=until)[1]
        return tenant.pk

    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(do(command.pop("what"), command)), flush=True)


if __name__ == "__main__":
    _serve()
