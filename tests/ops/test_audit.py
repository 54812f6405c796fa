"""The audit of dependencies fails on what is known to be vulnerable, and on nothing else."""

import json
import subprocess
from typing import Any

import pytest

from ops import audit

SAFE = {"name": "django", "version": "5.2", "vulns": []}
SKIPPED = {"name": "django", "skip_reason": "not found"}
BAD = {
    "name": "pillow",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["1.1"]}],
}


def answers(monkeypatch: pytest.MonkeyPatch, *outputs: str) -> None:
    """Makes pip-audit print these, one a call, and the last one from then on."""
    left = list(outputs)

    def run(command: list[Any], **options: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 1, left.pop(0) if left[1:] else left[0], "")

    monkeypatch.setattr(subprocess, "run", run)


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        pytest.param(report(SAFE), 0, "1 packages audited, no known vulnerability", id="safe"),
        pytest.param(report(SAFE, BAD), 1, "VULNERABLE: pillow 1.0: PYSEC-1", id="vulnerable"),
        pytest.param(report(SKIPPED, SKIPPED), 0, "WAS NOT AUDITED", id="a mirror without them"),
        pytest.param("", 0, "WAS NOT AUDITED", id="no network"),
        pytest.param(report(SAFE, SKIPPED), 0, "without advisories: django", id="one unknown"),
    ],
)
def test_only_a_vulnerability_fails_and_silence_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.delenv("AUDIT_REQUIRED", raising=False)
    answers(monkeypatch, output)
    assert audit.main() == code
    assert words in capsys.readouterr().out


def test_an_audit_that_is_required_fails_without_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_REQUIRED", "1")
    answers(monkeypatch, report(SKIPPED))
    assert audit.main() == 1


def test_the_second_source_is_asked_when_the_first_knows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, report(SKIPPED), report(BAD))
    assert audit.main() == 1


@pytest.mark.parametrize("named", ["PYSEC-1", "CVE-2026-1"])
def test_an_allowed_one_passes_by_any_of_its_ids(named: str) -> None:
    finding = audit.judge(json.loads(report(BAD)), {named: "not used here"})
    assert finding.vulnerable == ()
    assert [v.package for v in finding.allowed] == ["pillow"]


def test_every_allowed_one_has_a_reason() -> None:
    assert all(len(reason) > 20 for reason in audit.ALLOWED.values())
