"""`make up` from the outside: what it refuses, what it leaves, and the doctor."""

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ops.processes import find_marked
from tests.integration.installation import DEADLINE_S, ROOT, Installation, clean_environ, wait_for


def up(var_dir: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    environ = clean_environ(
        FERRY_VAR_DIR=str(var_dir), **({"FERRY_ENGINE": "simulated"} | settings)
    )
    return _run([sys.executable, "-m", "ops.up"], environ)


def _run(command: list[str], environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
        check=False,
    )


def test_a_second_start_names_the_first(idle: Installation) -> None:
    second = up(idle.var_dir, FERRY_PORT=str(idle.port))
    assert second.returncode == 1
    (line,) = second.stdout.splitlines()
    assert f"pid {idle.process.pid}, {idle.url}" in line
    idle.wait_ready()


def test_a_taken_port_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = up(tmp_path, PORT=str(port))
    assert refused.returncode == 1
    (line,) = refused.stdout.splitlines()
    assert f"port {port} of 127.0.0.1 is taken" in line
    assert find_marked(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"MODEL": "/no/such/model"}, "there is no folder /no/such/model", id="model"),
        pytest.param(
            {"ENGINE": "vllm", "INSTANCES": "500"}, "too little memory: 500 engines", id="memory"
        ),
        pytest.param({"INSTANCES": "many"}, "INSTANCES='many': expected", id="setting"),
    ],
)
def test_what_cannot_work_is_one_line_and_starts_nothing(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    refused = up(tmp_path, PORT="18997", **settings)
    assert refused.returncode == 1
    (line,) = refused.stdout.splitlines()
    assert message in line
    assert find_marked(tmp_path / "run") == []


def test_the_first_login_is_for_its_owner_only(idle: Installation) -> None:
    path = idle.var_dir / "first-login.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(idle.login) == {"url", "username", "password", "api_key"}
    assert idle.login["url"] == idle.url


def test_the_doctor_finds_a_running_installation_by_itself(idle: Installation) -> None:
    wait_for(lambda: idle.store().get("ferry:worker-heartbeat"), "the worker works")
    environ = clean_environ(FERRY_VAR_DIR=str(idle.var_dir))
    ended = _run([sys.executable, "manage.py", "doctor", "--json"], environ)
    report = json.loads(ended.stdout)
    assert {check["name"]: check["detail"] for check in report["checks"] if not check["ok"]} == {}
    assert (ended.returncode, report["ok"], report["url"]) == (0, True, idle.url)
    names = {check["name"] for check in report["checks"]}
    assert {"store", "database", "ray", "engines", "worker"} <= names
    assert {"chat", "stream", "resume", "websocket"} <= names


def test_the_doctor_says_what_is_wrong_where_nothing_runs(tmp_path: Path) -> None:
    environ = clean_environ(
        FERRY_VAR_DIR=str(tmp_path), REDIS_URL="redis://127.0.0.1:9/0", RAY_ADDRESS="127.0.0.1:9"
    )
    ended = _run(
        [sys.executable, "manage.py", "doctor", "--json", "--url", "http://127.0.0.1:9"], environ
    )
    assert ended.returncode == 1
    failed = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    assert not any(check["ok"] for name, check in failed.items() if name != "key")
    assert all(check["to_do"] for name, check in failed.items() if name != "key")
    assert "make up" in failed["store"]["to_do"]


def test_ctrl_c_leaves_no_process_and_no_state(tmp_path: Path) -> None:
    started = Installation(tmp_path, FERRY_ENGINE="simulated", FERRY_INSTANCES="1")
    try:
        started.wait_ready()
        scratch = Path(started.state.scratch_dir)
        assert started.stop() == 0
        assert find_marked(started.run_dir) == []
        assert not (started.run_dir / "state.json").exists()
        assert not scratch.exists()
    finally:
        started.stop()


def test_down_stops_it_and_a_killed_supervisor_is_cleaned_up(tmp_path: Path) -> None:
    started = Installation(tmp_path, FERRY_ENGINE="simulated", FERRY_INSTANCES="1")
    try:
        started.wait_ready()
        started.process.kill()
        started.process.wait(DEADLINE_S)
        down = _run([sys.executable, "-m", "ops.down"], started.environ)
        assert down.returncode == 0
        assert find_marked(started.run_dir) == []
    finally:
        started.stop()
    again = Installation(tmp_path, FERRY_ENGINE="simulated", FERRY_INSTANCES="1")
    try:
        again.wait_ready()
        down = _run([sys.executable, "-m", "ops.down"], again.environ)
        assert (down.returncode, again.process.wait(DEADLINE_S)) == (0, 0)
        assert find_marked(again.run_dir) == []
    finally:
        again.stop()
