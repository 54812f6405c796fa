"""`make test` runs everything, beside each other or in turn, and tells of every failure."""

import pytest

from ops import test as command
from ops.test import Run


@pytest.mark.parametrize("count", [1, 2])
def test_the_lanes_have_the_same_runs(count: int) -> None:
    runs = [run for lane in command.lanes(count) for run in lane]
    assert {run.name for run in runs} == {"installations", "parts", "postgresql"}
    assert len(runs) == 3
    assert len(command.lanes(count)) == count


def test_a_failure_in_one_lane_fails_all_and_is_told_at_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    good = Run("good", ("--version",))
    bad = Run("bad", ("/no/such/test",))
    assert command.run_lanes(((good,), (bad,)), ()) == 1
    output = capfd.readouterr().out
    assert "ferry  | good: passed" in output
    assert "ferry  | bad: FAILED (4)" in output
    end = output.rpartition("ferry  | good")[0]
    assert end.count("/no/such/test") >= 2, "in its place, and at the end again"


def test_lanes_that_pass_are_code_0() -> None:
    assert command.run_lanes(((Run("good", ("--version",)),),), ()) == 0
