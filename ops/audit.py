"""`make audit`: looks for known vulnerabilities in the locked dependencies.

    python -m ops.audit

Fails on a vulnerability that ALLOWED does not name. Where no source of advisories can be reached
it says so and passes, so that a build without a network goes on; with AUDIT_REQUIRED=1 it fails.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.settings import ROOT

LOCKS: Final = ("requirements/cpu.txt", "requirements/gpu.txt")
SOURCES: Final = ("pypi", "osv")
"""Of advisories, as pip-audit calls them: the package index first, as it may have a mirror."""
ALLOWED: Final[Mapping[str, str]] = {}
"""Id of a vulnerability that we live with (CVE, GHSA or PYSEC) -> why it does not hurt here."""
ANSWER_TIMEOUT_S: Final = 15
"""Of one question to a source."""
TIMEOUT_S: Final = 600.0
"""Of all questions about one lock; there are some hundred."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """Of one package in one lock."""

    package: str
    version: str
    ids: tuple[str, ...]
    """Its own id first, then those that others gave it."""
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fix = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "not fixed yet"
        return f"{self.package} {self.version}: {' = '.join(self.ids)}, {fix}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a source said about a lock."""

    checked: int
    """Packages that it knows."""
    unknown: tuple[str, ...]
    """Packages that it does not."""
    vulnerable: tuple[Vulnerability, ...]
    """Those that ALLOWED does not name."""
    allowed: tuple[Vulnerability, ...]


def main() -> int:
    is_required = os.environ.get("AUDIT_REQUIRED", "") == "1"
    return max(_audit(lock, is_required) for lock in LOCKS)


def judge(report: Mapping[str, Any], allowed: Mapping[str, str]) -> Finding:
    """Sorts pip-audit's report."""
    packages = report["dependencies"]
    found = [
        Vulnerability(
            package["name"],
            package["version"],
            (vuln["id"], *vuln.get("aliases", ())),
            tuple(vuln.get("fix_versions", ())),
        )
        for package in packages
        for vuln in package.get("vulns", ())
    ]
    unknown = tuple(package["name"] for package in packages if "skip_reason" in package)
    return Finding(
        checked=len(packages) - len(unknown),
        unknown=unknown,
        vulnerable=tuple(v for v in found if not any(i in allowed for i in v.ids)),
        allowed=tuple(v for v in found if any(i in allowed for i in v.ids)),
    )


def _audit(lock: str, is_required: bool) -> int:
    findings = (_ask(lock, source) for source in SOURCES)
    # A mirror without advisories answers that it knows no package at all.
    finding = next((f for f in findings if f is not None and f.checked), None)
    if finding is None:
        print(f"ferry  | {'!' * 60}")
        print(f"ferry  | {lock} WAS NOT AUDITED: no source of advisories can be reached")
        print("ferry  | ask one from a machine with a network: make audit AUDIT_REQUIRED=1")
        print(f"ferry  | {'!' * 60}", flush=True)
        return 1 if is_required else 0
    for vulnerability in finding.allowed:
        why = next(ALLOWED[i] for i in vulnerability.ids if i in ALLOWED)
        print(f"ferry  | allowed: {vulnerability}: {why}")
    for vulnerability in finding.vulnerable:
        print(f"ferry  | VULNERABLE: {vulnerability}")
    if finding.unknown:
        print(f"ferry  | without advisories: {', '.join(finding.unknown)}")
    word = "vulnerable" if finding.vulnerable else "no known vulnerability"
    print(f"ferry  | {lock}: {finding.checked} packages audited, {word}", flush=True)
    return 1 if finding.vulnerable else 0


def _ask(lock: str, source: str) -> Finding | None:
    """Returns what a source says, None when it cannot be reached."""
    program = Path(sys.executable).with_name("pip-audit")
    # The lock names every package with its version: nothing is resolved, nothing installed.
    how = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
    command = [str(program), "-r", lock, *how, f"--vulnerability-service={source}"]
    try:
        asked = subprocess.run(
            [*command, f"--timeout={ANSWER_TIMEOUT_S}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        report = json.loads(asked.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return judge(report, ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
