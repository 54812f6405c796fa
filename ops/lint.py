"""`make lint`: formatting, lint rules, strict types of the pure modules, and the import contracts.

python -m ops.lint
"""

import os
import subprocess
import sys
from pathlib import Path

from ops.settings import ROOT

CHECKS = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("mypy",),
    ("lint-imports",),
)


def main() -> int:
    failed = [" ".join(check) for check in CHECKS if not _passes(check)]
    for check in failed:
        print(f"ferry  | failed: {check}")
    return 1 if failed else 0


def _passes(check: tuple[str, ...]) -> bool:
    tool, *arguments = check
    program = Path(sys.executable).with_name(tool)
    print(f"ferry  | {' '.join(check)}", flush=True)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    command = [str(program), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
