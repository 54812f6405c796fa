"""docker-compose.yml names parts and commands that exist."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands

from engine_pool.view import SAMPLES
from ops import parts

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = sorted(name for name, service in SERVICES.items() if service["image"] == "ferry")


def test_all_production_parts_are_there() -> None:
    assert set(SERVICES) == {
        *("database", "store", "migrate", "web", "worker", "beat"),
        *("ray-head", "engine-node", "pool"),
    }


@pytest.mark.parametrize("name", OWN)
def test_a_part_runs_a_command_that_exists(name: str) -> None:
    command = [str(word) for word in SERVICES[name]["command"]]
    for django_command in re.findall(r"manage\.py (\w+)", " ".join(command)):
        assert django_command in get_commands()
    if command[:2] == ["python", "-m"]:
        assert find_spec(command[2]) is not None
        for dotted in (word for word in command[3:] if word.startswith("controlplane")):
            assert find_spec(dotted.partition(":")[0]) is not None
    else:
        assert command[0] in ("ray", "sh")


@pytest.mark.parametrize("name", [name for name in OWN if SERVICES[name]["command"][0] == "ray"])
def test_ray_takes_the_options_that_are_given(name: str) -> None:
    options = [word for word in SERVICES[name]["command"] if str(word).startswith("--")]
    shown = subprocess.run(
        [str(Path(sys.executable).with_name("ray")), "start", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert [option for option in options if option not in shown] == []


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_a_part_has_a_bounded_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= set(check)


def test_what_a_part_waits_for_exists_and_is_checked() -> None:
    for service in SERVICES.values():
        for needed, condition in service.get("depends_on", {}).items():
            wanted = condition["condition"]
            assert wanted == (
                "service_completed_successfully" if needed == "migrate" else "service_healthy"
            )
            assert needed == "migrate" or "healthcheck" in SERVICES[needed]


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", "STORE_PASSWORD", "RAY_AUTH_TOKEN", "FERRY_SECRET_KEY"):
        uses = re.findall(r"\$\{" + name + r"([^}]*)\}", text)
        assert uses
        assert all(use.startswith(":?") for use in uses)


def test_the_pool_health_check_reads_the_key_that_the_pool_writes() -> None:
    assert f'"{SAMPLES}"' in SERVICES["pool"]["healthcheck"]["test"][-1]


def test_web_runs_the_same_application_as_make_up() -> None:
    embedded = parts.web_part("127.0.0.1", 1).command
    application = next(word for word in embedded if word.endswith(":application"))
    assert application in SERVICES["web"]["command"]


def test_the_image_copies_what_its_installer_needs() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in re.findall(r"^COPY \S+ (.+) \S+$", dockerfile, re.MULTILINE):
        for source in name.split():
            assert (ROOT / source).exists(), source


def test_a_web_process_has_time_to_leave() -> None:
    web = SERVICES["web"]
    grace_s = float(re.sub(r"\$\{\w+:-(.+)\}", r"\1", web["environment"]["FERRY_WEB_GRACE_S"]))
    assert grace_s == settings.WEB_GRACE_S
    assert float(web["stop_grace_period"].removesuffix("s")) >= grace_s + 10
    assert "/readyz" in web["healthcheck"]["test"][-1], "not while it leaves"


def test_make_up_stops_its_web_process_soon() -> None:
    web = parts.web_part("127.0.0.1", 1)
    assert float(web.environ["FERRY_WEB_GRACE_S"]) + parts.WEB_CLOSE_S < web.stop_timeout_s
