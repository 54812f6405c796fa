"""Creates .venv and installs the locked dependencies. Runs on a bare Python 3.11.

    python3.11 ops/install.py

uv does the installing. A stamp with the lock's digest makes a second run instant.
"""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "ferry-installed"
UV = "uv==0.13.9"
TORCH_WHEEL = "torch-*+cpu-*.whl"


class InstallError(Exception):
    """The message is one line that says what to do."""


def main() -> int:
    try:
        _install()
    except InstallError as error:
        print(f"ferry  | {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _install() -> None:
    if sys.version_info[:2] != (3, 11):
        found = ".".join(map(str, sys.version_info[:2]))
        raise InstallError(f"Ferry needs Python 3.11, not {found}: make PYTHON=/path/to/python3.11")
    lock = ROOT / "requirements" / f"{_accelerator()}.txt"
    digest = hashlib.sha256(lock.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    if STAMP.is_file() and STAMP.read_text() == digest:
        return
    began_s = time.monotonic()
    print(
        f"ferry  | installing the dependencies of {lock.relative_to(ROOT)} into .venv", flush=True
    )
    if not (VENV / "bin" / "python").exists():
        _run([sys.executable, "-m", "venv", str(VENV)], "cannot create .venv (is venv installed?)")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", UV]
    _run(pip, f"pip cannot install {UV}; is a package index reachable?")
    _run(_sync_command(lock), "uv cannot install the dependencies; what is missing stands above")
    STAMP.write_text(digest)
    print(f"ferry  | installed in {time.monotonic() - began_s:.0f} s", flush=True)


def _accelerator() -> str:
    """Returns "gpu" where asked for or where an NVIDIA driver is loaded, else "cpu"."""
    asked = os.environ.get("ACCELERATOR", "").strip().lower()
    if asked not in ("", "cpu", "gpu"):
        raise InstallError(f"ACCELERATOR={asked!r}: expected cpu or gpu")
    return asked or ("gpu" if Path("/proc/driver/nvidia/version").exists() else "cpu")


def _sync_command(lock: Path) -> list[str]:
    command = [str(VENV / "bin" / "uv"), "pip", "sync", str(lock)]
    command += ["--python", str(VENV / "bin" / "python"), "--compile-bytecode"]
    if not sys.stdout.isatty():
        command += ["--quiet"]  # no list of 200 names where nobody watches a progress bar
    if lock.name == "cpu.txt" and not has_torch_wheel():
        command += ["--torch-backend", "cpu"]
    return command


def has_torch_wheel() -> bool:
    """Says whether a folder that pip looks into holds the CPU build of torch.

    That build is not on the usual index, only on PyTorch's own, which uv knows by itself.
    """
    folders = os.environ.get("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", "")).split()
    return any(list(Path(folder).glob(TORCH_WHEEL)) for folder in folders if Path(folder).is_dir())


def uv_environ() -> dict[str, str]:
    """Returns the environment for uv, which does not read pip's settings itself."""
    environ = dict(os.environ)
    if environ.get("PIP_FIND_LINKS"):
        environ.setdefault("UV_FIND_LINKS", environ["PIP_FIND_LINKS"].replace(" ", ","))
    if environ.get("PIP_CERT"):
        environ.setdefault("SSL_CERT_FILE", environ["PIP_CERT"])
    environ.setdefault("UV_HTTP_TIMEOUT", "300")
    return environ


def _run(command: list[str], what: str) -> None:
    if subprocess.run(command, env=uv_environ(), cwd=ROOT, check=False).returncode:
        raise InstallError(what)


if __name__ == "__main__":
    sys.exit(main())
