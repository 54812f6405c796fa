"""A new installation's database is set up on PostgreSQL as on SQLite."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ops.postgresql import running_postgresql
from ops.settings import ROOT

BOOTSTRAP = ("bootstrap", "--url", "http://127.0.0.1:1")


def test_a_database_is_set_up_on_postgresql_and_stays_when_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "postgresql"
    folder.mkdir()
    var_dir = tmp_path / "var"
    with running_postgresql(folder) as url:
        environ = {**os.environ, "DATABASE_URL": url, "FERRY_VAR_DIR": str(var_dir)}
        steps = (("migrate", "-v0"), BOOTSTRAP, ("migrate", "--check"), BOOTSTRAP)
        logins = []
        for step in steps:
            command = [sys.executable, "manage.py", *step]
            subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=120)
            login = var_dir / "first-login.json"
            logins.append(json.loads(login.read_text()) if login.exists() else None)
    assert logins[0] is None
    assert logins[1]["api_key"].startswith("sk-")
    assert logins[1] == logins[3], "the second time finds all there"
