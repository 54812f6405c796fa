"""The first start: an operator, a tenant, a key; secrets in one file and nowhere else."""

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection

from controlplane.tenants.first_login import SETUP
from controlplane.tenants.keys import parse_key
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import key_revoke

pytestmark = pytest.mark.django_db


@pytest.fixture
def var_dir(settings: Any, tmp_path: Path) -> Path:
    settings.VAR_DIR = tmp_path
    return tmp_path


def bootstrap() -> str:
    out = io.StringIO()
    call_command("bootstrap", url="http://here:1", stdout=out)
    return out.getvalue()


def test_the_first_start_makes_login_and_key(var_dir: Path) -> None:
    said = bootstrap()
    path = var_dir / "first-login.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    login = json.loads(path.read_text())
    assert set(login) == {"url", "username", "password", "api_key"}
    user = User.objects.get(username=login["username"])
    assert user.check_password(login["password"])
    assert user.is_superuser
    presented = parse_key(login["api_key"])
    assert presented is not None
    key = ApiKey.objects.get(public_id=presented.public_id)
    assert presented.matches(key.secret_digest)
    assert key.hint == f"sk-...{login['api_key'][-4:]}"
    for secret in (login["password"], presented.secret):
        assert secret not in said


def test_a_second_start_changes_nothing(var_dir: Path) -> None:
    bootstrap()
    before = (var_dir / "first-login.json").read_text()
    bootstrap()
    assert (var_dir / "first-login.json").read_text() == before
    assert ApiKey.objects.count() == Tenant.objects.count() == 1


def test_a_deleted_file_is_not_made_again(var_dir: Path) -> None:
    bootstrap()
    (var_dir / "first-login.json").unlink()
    bootstrap()
    assert not (var_dir / "first-login.json").exists()


def test_no_table_holds_a_secret(var_dir: Path) -> None:
    bootstrap()
    login = json.loads((var_dir / "first-login.json").read_text())
    secrets = [login["password"], login["api_key"].split("-", 2)[2]]
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')
            rows = repr(cursor.fetchall())
            assert all(secret not in rows for secret in secrets), table


def test_revoking_twice_keeps_the_first_time(var_dir: Path) -> None:
    bootstrap()
    key = ApiKey.objects.get()
    key_revoke(access=SETUP, key=key)
    key.refresh_from_db()
    first = key.revoked_at
    assert first is not None
    key_revoke(access=SETUP, key=key)
    key.refresh_from_db()
    assert key.revoked_at == first
