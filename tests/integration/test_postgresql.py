"""What the control plane does with its database, on the production database."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.settings import ROOT
from tests.integration.postgresql import running_postgresql

pytestmark = pytest.mark.slow

DATABASE_TESTS = ["tests/controlplane/test_bootstrap.py", "tests/web/test_pages.py"]
"""They read and write every table; on their own they run on SQLite."""


def test_the_control_plane_works_on_postgresql(tmp_path: Path) -> None:
    folder = tmp_path / "postgresql"
    folder.mkdir()
    with running_postgresql(folder) as url:
        environ = {**os.environ, "DATABASE_URL": url, "FERRY_VAR_DIR": str(tmp_path / "var")}
        manage = [sys.executable, "manage.py"]
        for command in (["migrate", "-v0"], ["bootstrap", "--url", "http://127.0.0.1:1"]):
            subprocess.run([*manage, *command], cwd=ROOT, env=environ, check=True, timeout=120)
        login = json.loads((tmp_path / "var/first-login.json").read_text())
        assert login["api_key"].startswith("sk-")
        # Its own settings environment is made by tests/conftest.py; the database is what it shares.
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *DATABASE_TESTS],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert tests.returncode == 0, tests.stdout[-3000:] + tests.stderr[-2000:]
