"""`make lock`: makes requirements/cpu.txt and requirements/gpu.txt anew from pyproject.toml.

    python -m ops.lock

Requirements format, because it records versions and no hosts. The CPU lock needs the CPU build of
torch (a folder in UV_FIND_LINKS or PIP_FIND_LINKS, or PyTorch's own index).
"""

import os
import subprocess
import sys

from ops.install import has_torch_wheel, uv_environ
from ops.settings import ROOT

_COMMON = (
    *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"),
    *("--group", "dev", "--no-emit-index-url", "--no-emit-find-links"),
    *("--custom-compile-command", "make lock", "--quiet"),
)


def main() -> int:
    for extra in ("cpu", "gpu"):
        status = subprocess.run(
            _command(extra), env=_environ(extra), cwd=ROOT, check=False
        ).returncode
        if status:
            print(f"ferry  | requirements/{extra}.txt could not be made", file=sys.stderr)
            return status
    return 0


def _command(extra: str) -> list[str]:
    uv = os.path.join(os.path.dirname(sys.executable), "uv")
    command = [uv, "pip", "compile", "pyproject.toml", *_COMMON, "--extra", extra]
    command += ["--overrides", f"requirements/{extra}-overrides.txt"]
    if extra == "cpu" and not has_torch_wheel():
        command += ["--torch-backend", "cpu"]
    return [*command, "--output-file", f"requirements/{extra}.txt"]


def _environ(extra: str) -> dict[str, str]:
    environ = uv_environ()
    if extra == "gpu":
        environ.pop("UV_FIND_LINKS", None)  # a CPU build of torch may lie there
    return environ


if __name__ == "__main__":
    sys.exit(main())
