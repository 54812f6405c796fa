"""What-if runs: who may have one, in what order they run, and how each of them ends."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.whatif import services
from controlplane.whatif.checks import presets
from controlplane.whatif.limits import HEARTBEAT_LIMIT_S, QUEUED_MAX
from controlplane.whatif.models import RunState, SimulationRun
from controlplane.whatif.runner import run_next
from controlplane.whatif.selectors import runs_before, runs_list
from controlplane.whatif.values import (
    GoOn,
    Report,
    RunFailed,
    RunStopped,
    Scenario,
    WhatIfRefused,
    Wish,
)

pytestmark = pytest.mark.django_db

SMALL: Scenario = {"pool": {"instances": 2}, "workload": {"requests": 20, "rate_per_s": 2.0}}
REPORT: Report = {"summary": {"prefill_p99_ms": 310.5}, "moves": {"committed": 3}, "series": {}}


@pytest.fixture
def olga() -> User:
    return User.objects.create_user("olga", password="x", is_staff=True)


def start(user: User, name: str = "small", **wish: Any) -> SimulationRun:
    return services.run_start(user=user, wish=Wish(name, wish.pop("scenario", SMALL), **wish))


def gives_report(scenario: Scenario, go_on: GoOn) -> Report:
    assert go_on(0.5)
    return dict(REPORT)


def test_a_run_is_kept_with_every_value_and_leaves_an_audit_row(olga: User) -> None:
    run = start(olga)
    assert (run.state, run.who, run.progress) == (RunState.QUEUED, "olga", 0.0)
    assert run.scenario["pool"]["instances"] == 2
    assert run.scenario["policy"]["migration"] is True
    entry = AuditEntry.objects.get()
    assert (entry.who, entry.action, entry.result) == ("olga", "start_whatif", "done")
    assert entry.object == f"{run.run_id}: small"


@pytest.mark.parametrize(
    ("scenario", "field"),
    [
        pytest.param({"pool": {"instances": 0}}, "pool.instances", id="no instance"),
        pytest.param({"pool": {"instances": 257}}, "pool.instances", id="too many instances"),
        pytest.param({"pool": {"wheels": 4}}, "pool.wheels", id="unknown field"),
        pytest.param({"tyres": {}}, "tyres", id="unknown section"),
        pytest.param({"workload": {"requests": 50_001}}, "workload.requests", id="too many"),
        pytest.param({"workload": {"rate_per_s": "fast"}}, "workload.rate_per_s", id="a word"),
        pytest.param(
            {"scaling": {"enabled": True, "max_instances": 1000}},
            "scaling.max_instances",
            id="scaling beyond the limit",
        ),
        pytest.param(
            {"pool": {"capacity_tokens": 160}}, "pool.capacity_tokens", id="requests do not fit"
        ),
        pytest.param(
            {"workload": {"kind": "trace", "file": "/etc/passwd"}}, "workload.file", id="a path"
        ),
        pytest.param(
            {"workload": {"kind": "trace", "file": "../x.csv"}}, "workload.file", id="a folder up"
        ),
        pytest.param(
            {"workload": {"kind": "trace", "file": "none.csv"}}, "workload.file", id="no such file"
        ),
        pytest.param({"costs": {"file": "../x.json"}}, "costs.file", id="costs elsewhere"),
    ],
)
def test_a_scenario_that_cannot_run_is_refused_by_its_field(
    olga: User, scenario: Scenario, field: str
) -> None:
    with pytest.raises(WhatIfRefused) as refusal:
        start(olga, scenario=scenario)
    assert refusal.value.field == field
    assert not SimulationRun.objects.exists()
    entry = AuditEntry.objects.get()
    assert (entry.result, entry.detail) == ("refused", str(refusal.value))


def test_a_bad_baseline_is_named_as_such(olga: User) -> None:
    with pytest.raises(WhatIfRefused) as refusal:
        start(olga, baseline={"pool": {"instances": 0}}, baseline_label="as now")
    assert refusal.value.field == "baseline.pool.instances"


def test_where_the_servers_files_lie_is_not_told(olga: User, settings: Any, tmp_path: Path) -> None:
    settings.WHATIF_DIR = tmp_path
    with pytest.raises(WhatIfRefused) as refusal:
        start(olga, scenario={"workload": {"kind": "trace", "file": "gone.csv"}})
    assert "gone.csv" in str(refusal.value)
    assert str(tmp_path) not in str(refusal.value)


def test_a_trace_of_the_installation_is_found_and_its_path_not_kept(
    olga: User, settings: Any, tmp_path: Path
) -> None:
    settings.WHATIF_DIR = tmp_path
    rows = "".join(f"2023-11-16 18:15:{i:02},100,{i + 1}\n" for i in range(30))
    (tmp_path / "mine.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    start(olga, scenario={"workload": {"kind": "trace", "file": "mine.csv", "requests": 30}})
    seen: list[str] = []

    def looks(scenario: Scenario, go_on: GoOn) -> Report:
        seen.append(scenario["workload"]["file"])
        raise RunFailed(f"{seen[0]}: line 2: no")

    run = run_next(looks)
    assert seen == [str(tmp_path / "mine.csv")]
    assert run is not None
    assert (run.scenario["workload"]["file"], run.error) == ("mine.csv", "mine.csv: line 2: no")


def test_every_scenario_that_comes_with_ferry_can_be_run() -> None:
    folder = Path(django_settings.BASE_DIR, "scenarios")
    assert set(presets()) == {path.stem for path in folder.glob("*.toml")}


def test_a_full_queue_refuses_and_says_what_to_do(olga: User) -> None:
    for number in range(QUEUED_MAX):
        start(olga, f"run {number}")
    with pytest.raises(WhatIfRefused, match="Cancel one") as refusal:
        start(olga)
    assert refusal.value.code == "queue_full"


def test_runs_go_one_after_the_other_in_their_order(olga: User) -> None:
    first, second = start(olga, "first"), start(olga, "second")
    assert runs_before(second) == 1
    now = timezone.now()
    claimed = services.run_claim(now=now)
    assert claimed == first
    assert services.run_claim(now=now) is None
    assert services.run_finish(run=first, report=REPORT, baseline_report=None, now=now)
    assert services.run_claim(now=now) == second


def test_the_database_itself_lets_only_one_run(olga: User) -> None:
    runs = [start(olga), start(olga)]
    SimulationRun.objects.filter(pk=runs[0].pk).update(state=RunState.RUNNING)
    with pytest.raises(IntegrityError), transaction.atomic():
        SimulationRun.objects.filter(pk=runs[1].pk).update(state=RunState.RUNNING)


def test_a_run_that_is_carried_out_keeps_its_report(olga: User) -> None:
    start(olga)
    run = run_next(gives_report)
    assert run is not None
    assert (run.state, run.progress) == (RunState.DONE, 1.0)
    assert run.report == {**REPORT, "scenario": run.scenario}
    assert (run.ttft_p99_ms, run.moves, run.baseline_report) == (310.5, 3, None)
    assert run_next(gives_report) is None


def test_both_sides_of_a_comparison_share_the_progress(olga: User) -> None:
    start(olga, baseline={**SMALL, "pool": {"instances": 3}}, baseline_label="as now")
    seen: list[tuple[int, float]] = []

    def watched(scenario: Scenario, go_on: GoOn) -> Report:
        assert go_on(0.5)
        row = SimulationRun.objects.get()
        seen.append((scenario["pool"]["instances"], row.progress))
        return {**REPORT, "side": scenario["pool"]["instances"]}

    run = run_next(watched)
    assert seen == [(3, 0.25), (2, 0.75)]
    assert run is not None
    assert run.report is not None
    assert run.baseline_report is not None
    assert (run.report["side"], run.baseline_report["side"]) == (2, 3)


def test_a_cancel_in_mid_run_ends_it(olga: User) -> None:
    start(olga)

    def cancelled(scenario: Scenario, go_on: GoOn) -> Report:
        assert go_on(0.3)
        services.run_cancel(user=olga, run=SimulationRun.objects.get())
        assert not go_on(0.4)
        raise RunStopped

    run = run_next(cancelled)
    assert run is not None
    assert (run.state, run.cancel_wanted_by, run.report) == (RunState.CANCELLED, "olga", None)
    assert run.progress == pytest.approx(0.3)
    assert AuditEntry.objects.filter(action="cancel_whatif", result="done").count() == 1


def test_a_waiting_run_is_cancelled_at_once_and_never_begins(olga: User) -> None:
    run = start(olga)
    services.run_cancel(user=olga, run=run)
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert run_next(gives_report) is None


def test_an_ended_run_cannot_be_cancelled(olga: User) -> None:
    start(olga)
    run = run_next(gives_report)
    assert run is not None
    with pytest.raises(WhatIfRefused, match="ended already: it is done") as refusal:
        services.run_cancel(user=olga, run=run)
    assert refusal.value.code == "ended"
    assert AuditEntry.objects.filter(action="cancel_whatif", result="refused").exists()


def test_what_the_simulator_says_is_the_reason_of_a_failed_run(olga: User) -> None:
    start(olga)

    def breaks(scenario: Scenario, go_on: GoOn) -> Report:
        raise RunFailed("It took longer than 900 s.")

    run = run_next(breaks)
    assert run is not None
    assert (run.state, run.error) == (RunState.FAILED, "It took longer than 900 s.")


def test_a_run_whose_worker_died_fails_with_that_reason(olga: User) -> None:
    run = start(olga)
    begun = timezone.now()
    services.run_claim(now=begun)
    assert services.run_beat(run=run, share=0.42, now=begun)
    assert services.runs_reap(now=begun + timedelta(seconds=HEARTBEAT_LIMIT_S - 1)) == 0
    late = begun + timedelta(seconds=HEARTBEAT_LIMIT_S + 1)
    assert services.runs_reap(now=late) == 1
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "no sign of life for 31 s, at 42%" in run.error
    # The worker was only slow: its late result changes nothing, and it is told to stop.
    assert not services.run_beat(run=run, share=0.5, now=late)
    assert not services.run_finish(run=run, report=REPORT, baseline_report=None, now=late)
    run.refresh_from_db()
    assert (run.state, run.report) == (RunState.FAILED, None)


def test_a_cancelled_run_whose_worker_died_counts_as_cancelled(olga: User) -> None:
    run = start(olga)
    begun = timezone.now()
    services.run_claim(now=begun)
    services.run_cancel(user=olga, run=run)
    services.runs_reap(now=begun + timedelta(seconds=HEARTBEAT_LIMIT_S + 1))
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED


def test_only_the_newest_ended_runs_are_kept(olga: User) -> None:
    for number in range(4):
        start(olga, f"run {number}")
        run_next(gives_report)
    waiting = start(olga, "waits")
    SimulationRun.objects.filter(pk=waiting.pk).update(
        created_at=timezone.now() - timedelta(days=1)
    )
    assert services.runs_forget(keep=2) == 2
    assert [r.name for r in runs_list().runs] == ["run 3", "run 2", "waits"]
