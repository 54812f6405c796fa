"""Rules about the checkout itself that no single test of a module would notice broken."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in [
        *ROOT.glob("engine_pool/policy/*.py"),
        *(ROOT / "migration" / f"{name}.py" for name in ("protocol", "stages", "report", "wish")),
        ROOT / "engine_pool" / "types.py",
    ]
    if path.name != "__init__.py"
)
# In pieces, so that this file does not name what it forbids.
FORBIDDEN = [
    "pypi" + ".org",
    "files.python" + "hosted.org",
    "registry." + "npmjs.org",
    "deb." + "debian.org",
    "download." + "pytorch.org",
    "/work" + "/main",
    "/work" + "/shared",
    "/opt" + "/wheels",
    "/root" + "/",
]


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


def test_the_standard_platform_module_is_not_shadowed() -> None:
    code = "import platform, controlplane; print(platform.python_version(), platform.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert shown.startswith("3.11.")
    assert str(ROOT / "platform") not in shown


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_need_nothing_but_the_standard_library(module: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_there_are_pure_modules_to_check() -> None:
    assert len(PURE) >= 4


def test_no_tracked_file_names_a_registry_or_this_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked_files()
        for word in FORBIDDEN
        if word in text_of(path)
    ]
    assert found == []


def test_the_locks_name_no_host_and_pin_every_package() -> None:
    for name in ("cpu", "gpu"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        packages = [line for line in lines if line and not line.lstrip().startswith("#")]
        assert len(packages) > 100
        assert [line for line in packages if not re.match(r"^[\w.\[\],-]+==[^\s/]+", line)] == []


def test_commands_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = [path for path in tracked_files() if path.suffix == ".md"]
    named = {
        target
        for path in documents
        for block in re.findall(r"```(?:\w*)\n(.*?)```|`([^`\n]+)`", path.read_text(), re.DOTALL)
        for target in re.findall(r"\bmake ([a-z]+)\b", " ".join(block))
    }
    assert {"up", "test"} <= named
    assert named <= targets


def test_no_lint_rule_is_switched_off_for_everything() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert settings["ignore"] == ["RUF012"]


def test_a_run_writes_only_into_ignored_folders() -> None:
    for path in ("var/first-login.json", "var/run/state.json", ".venv/ferry-installed"):
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
        assert ignored.returncode == 0, path
