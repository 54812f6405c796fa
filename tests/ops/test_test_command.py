"""`make test` runs everything, beside each other or in turn, and tells of every failure."""

import pytest

from ops import test as command
from ops.test import Run


def test_the_runs_have_all_tests_and_the_database_s_twice() -> None:
    names = [run.name for run in command.RUNS]
    assert names == ["installations", "parts", "engines", "postgresql"]
    assert [run.is_on_postgresql for run in command.RUNS] == [False, False, False, True]


def test_one_failure_fails_all_and_is_told_at_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    good = Run("good", ("--version",))
    bad = Run("bad", ("/no/such/test",))
    assert command.run_all((bad, good), 2, ()) == 1
    output = capfd.readouterr().out
    assert "ferry  | good: passed" in output
    assert "ferry  | bad: FAILED (4)" in output
    end = output.rpartition("ferry  | good")[0]
    assert end.count("/no/such/test") >= 2, "in its place, and at the end again"


def test_runs_that_pass_are_code_0() -> None:
    assert command.run_all((Run("good", ("--version",)),), 1, ()) == 0
