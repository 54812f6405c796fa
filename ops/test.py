"""`make test`: installs what the tests need and the machine lacks, then lints and tests.

python -m ops.test [PYTEST_ARGUMENT...]
"""

import os
import shutil
import subprocess
import sys

from ops import lint
from ops.settings import ROOT

PROGRAMS = {"chromium": "chromium", "node": "nodejs", "pg_ctlcluster": "postgresql"}
"""Program -> Debian package. The page tests drive a real browser and run the browser's modules
without one; the integration tests run on a real PostgreSQL (its server is not on the path, its
control program is)."""


def main() -> int:
    packages = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if packages and not _install(packages):
        return 1
    if lint.main():
        return 1
    return subprocess.run(
        [sys.executable, "-m", "pytest", *sys.argv[1:]], cwd=ROOT, check=False
    ).returncode


def _install(packages: list[str]) -> bool:
    """Installs Debian packages. Returns whether they are there; says what to do if not."""
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"ferry  | the tests need {names}; install with: sudo apt-get install {names}")
        return False
    print(f"ferry  | installing {names}", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["-qq", "-o", "Dpkg::Use-Pty=0"]
    install = ["apt-get", "install", *quiet, "-y", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", *quiet], install):
        if subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"ferry  | failed: {' '.join(command)}")
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
