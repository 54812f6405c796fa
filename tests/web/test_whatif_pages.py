"""The What if pages: the form, its errors, the runs, one run in every state, and the API."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.gateway.models import RequestRecord, RequestStatus
from controlplane.tenants.models import Tenant
from controlplane.whatif.models import RunState, SimulationRun
from controlplane.whatif.runner import run_next
from controlplane.whatif.values import GoOn, Report, RunFailed, Scenario
from engine_pool.simulator.cost_file import write_costs
from engine_pool.simulator.run import run as simulate
from engine_pool.simulator.scenario import scenario_of
from tests.simulator.test_cost_file import COSTS
from tests.web.conftest import FakeWatch
from tests.web.reading import page, text_of
from web import whatif_form

SMALL: Scenario = {"pool": {"instances": 2}, "workload": {"requests": 120, "rate_per_s": 2.0}}


def here(scenario: Scenario, go_on: GoOn) -> Report:
    """The real simulator, in this process."""
    return simulate(scenario_of(scenario)).to_dict()


def fill(html: str, **changed: str | None) -> dict[str, str]:
    """Returns what a browser would send of the form; None: a switch is off."""
    form = re.search(r'<form method="post" data-busy.*?</form>', html, re.S)
    assert form is not None
    sent = {}
    for tag in re.findall(r"<input[^>]*>", form[0]):
        name, value = re.search(r'name="([^"]+)"', tag), re.search(r'value="([^"]*)"', tag)
        is_off = "checkbox" in tag and " checked" not in tag
        if name and value and not is_off:
            sent[name[1]] = value[1]
    for name, body in re.findall(r'<select[^>]*name="([^"]+)".*?>(.*?)</select>', form[0], re.S):
        chosen = re.search(r'value="([^"]*)" selected', body)
        sent[name] = chosen[1] if chosen else re.findall(r'value="([^"]*)"', body)[0]
    sent.pop("csrfmiddlewaretoken", None)
    for name, value in changed.items():
        key = name.replace("__", ".")
        if value is None:
            sent.pop(key, None)
        else:
            sent[key] = value
    return sent


@pytest.fixture
def started(operators_client: Client, pool: Callable[[int], FakeWatch]) -> SimulationRun:
    """A run of the form with four instances, a small load, compared with the pool as it is."""
    pool(3)
    sent = fill(page(operators_client, "/whatif/"), pool__instances="4", workload__requests="120")
    answer = operators_client.post("/whatif/", sent)
    assert answer.status_code == 303, text_of(answer.content.decode())
    run = SimulationRun.objects.get()
    assert answer.headers["Location"] == f"/whatif/{run.run_id}/"
    return run


def test_the_form_begins_with_the_pool_as_it_is(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    watch = pool(3)
    rows = watch.observer.look().rows.values()
    sent = fill(page(operators_client, "/whatif/"))
    assert sent["pool.instances"] == str(sum(r.state == "serving" for r in rows))
    assert sent["pool.capacity_tokens"] == str(min(r.capacity_tokens or 0 for r in rows))
    assert (sent["policy.below_steps"], sent["policy.migration"]) == ("48", "on")
    assert "scaling.enabled" not in sent


def test_the_present_load_comes_from_the_last_minutes(
    watch: FakeWatch, operators_client: Client
) -> None:
    tenant = Tenant.objects.create(slug="t", name="T")
    now = timezone.now()
    RequestRecord.objects.bulk_create(
        RequestRecord(
            request_id=f"r{i}",
            tenant=tenant,
            endpoint="chat",
            priority_class="high" if i % 4 == 0 else "normal",
            status=RequestStatus.COMPLETED,
            prompt_tokens=110,
            output_tokens=480,
            arrived_at=now - timedelta(seconds=100 - i),
            duration_ms=5.0,
        )
        for i in range(40)
    )
    html = page(operators_client, "/whatif/")
    sent = fill(html)
    assert (sent["workload.input"], sent["workload.output"]) == ("S", "L")
    assert float(sent["workload.rate_per_s"]) == pytest.approx(0.4, rel=0.05)
    assert sent["workload.high_share"] == "25"
    assert "prompts of 110 and answers of 480 tokens on average" in text_of(html)


def test_measured_step_times_are_the_pools_own(
    watch: FakeWatch, operators_client: Client, settings: Any, tmp_path: Path
) -> None:
    settings.WHATIF_DIR = tmp_path
    write_costs(tmp_path / "costs.json", COSTS)
    sent = fill(page(operators_client, "/whatif/"))
    assert (sent["costs.file"], sent["costs.time_scale"]) == ("costs.json", "1")
    assert operators_client.post("/whatif/", sent).status_code == 303
    run = SimulationRun.objects.get()
    for side in (run.scenario, run.baseline or {}):
        assert (side["costs"]["file"], side["costs"]["decode_base_ms"]) == ("costs.json", 30.0)


def test_step_times_that_cannot_be_read_do_not_take_the_page_away(
    watch: FakeWatch, operators_client: Client, settings: Any, tmp_path: Path
) -> None:
    settings.WHATIF_DIR = tmp_path
    (tmp_path / "costs.json").write_text("{}")
    sent = fill(page(operators_client, "/whatif/"))
    assert sent["costs.file"] == ""
    answer = operators_client.post("/whatif/", {**sent, "costs.file": "costs.json"})
    assert answer.status_code == 400
    assert 'id="f-costs-file-error"' in answer.content.decode()


def test_without_requests_the_form_says_that_the_load_is_made_up(
    watch: FakeWatch, operators_client: Client
) -> None:
    assert "it is a named mix" in text_of(page(operators_client, "/whatif/"))


def test_a_sent_form_becomes_a_run_against_the_pool_as_it_is(started: SimulationRun) -> None:
    assert started.scenario["pool"]["instances"] == 4
    assert started.baseline is not None
    assert started.baseline["pool"]["instances"] == 3
    assert started.baseline["workload"] == started.scenario["workload"]
    assert (started.baseline_label, started.who) == ("as now", "olga")
    assert started.name == "4 instances instead of 3"


@pytest.mark.parametrize(
    ("compare", "policy"),
    [
        pytest.param("still", {"migration": False, "dispatch": "freest"}, id="nothing moves"),
        pytest.param("in_turn", {"migration": False, "dispatch": "round_robin"}, id="in turn"),
        pytest.param("none", None, id="nothing"),
    ],
)
def test_the_other_side_is_what_was_chosen(
    compare: str,
    policy: dict[str, Any] | None,
    pool: Callable[[int], FakeWatch],
    operators_client: Client,
) -> None:
    pool(2)
    sent = fill(page(operators_client, "/whatif/"), compare=compare, name="mine")
    assert operators_client.post("/whatif/", sent).status_code == 303
    run = SimulationRun.objects.get()
    assert run.name == "mine"
    found = run.baseline and {key: run.baseline["policy"][key] for key in policy or {}}
    assert found == policy


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        pytest.param("pool.instances", "three", "Expected a whole number, got “three”", id="word"),
        pytest.param("pool.instances", "", "Expected a whole number, got nothing", id="empty"),
        pytest.param("pool.instances", "300", "At most 256 are simulated here", id="too many"),
        pytest.param("workload.rate_per_s", "0", "Expected a number", id="no load"),
        pytest.param("workload.cv", "nan", "Expected a number", id="not a number"),
        pytest.param("workload.high_share", "120", "at most 1", id="share over all"),
        pytest.param("policy.above_steps", "1", "at least below_steps (48)", id="crossed"),
        pytest.param("workload.input", "XL", '"S" or "M" or "L"', id="no such mix"),
    ],
)
def test_an_error_stands_under_its_field_and_the_values_are_kept(
    field: str,
    value: str,
    words: str,
    pool: Callable[[int], FakeWatch],
    operators_client: Client,
) -> None:
    pool(2)
    sent = fill(page(operators_client, "/whatif/"), workload__requests="777", name="kept")
    answer = operators_client.post("/whatif/", {**sent, field: value})
    assert answer.status_code == 400
    html = answer.content.decode()
    found = re.search(rf'id="f-{re.escape(field.replace(".", "-"))}-error">(.*?)</small>', html)
    assert found is not None
    assert words in text_of(found[1])
    kept = fill(html)
    assert (kept["workload.requests"], kept["name"]) == ("777", "kept")
    if field != "workload.input":
        assert kept[field] == value
    assert not SimulationRun.objects.exists()


def test_a_run_that_waits_or_runs_shows_how_far_it_is(
    started: SimulationRun, operators_client: Client
) -> None:
    html = page(operators_client, f"/whatif/{started.run_id}/")
    assert "It begins within a second or two" in text_of(html)
    assert f'data-refresh="/whatif/{started.run_id}/"' in html
    SimulationRun.objects.update(
        state=RunState.RUNNING, progress=0.4, started_at=timezone.now() - timedelta(seconds=20)
    )
    part = page(operators_client, f"/whatif/{started.run_id}/", **{"HX-Request": "true"})
    assert "<html" not in part
    assert "40 %, about 30 s left" in text_of(part)
    assert 'value="0.400"' in part
    runs = page(operators_client, "/whatif/", **{"HX-Request": "true"})
    assert 'data-refresh="/whatif/"' in runs
    assert 'value="0.400"' in runs


def test_a_finished_comparison_says_what_changed_in_numbers(
    started: SimulationRun, operators_client: Client
) -> None:
    assert run_next(here) is not None
    html = page(operators_client, f"/whatif/{started.run_id}/")
    text = text_of(html)
    assert "With 4 instances instead of 3 the P99 time to first token" in text
    assert "data-refresh" not in html
    assert 'id="run-data"' in html
    for words in (
        "First token, P99",
        "Fragmentation",
        "By class",
        "One load of one seed",
        "as now",
    ):
        assert words in text, words
    row = re.search(r'<tr class="differs"><th scope="row">Instances</th>.*?</tr>', html, re.S)
    assert row is not None
    assert text_of(row[0]).split() == ["Instances", "4", "3"]
    assert "First token P99" in text_of(page(operators_client, "/whatif/"))


def test_a_single_run_needs_no_other_side(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    sent = fill(page(operators_client, "/whatif/"), compare="none", workload__requests="50")
    operators_client.post("/whatif/", sent)
    run = run_next(here)
    assert run is not None
    text = text_of(page(operators_client, f"/whatif/{run.run_id}/"))
    assert "The first token comes after" in text
    assert "as now" not in text


def test_the_reason_of_a_failed_run_is_shown_whole(
    started: SimulationRun, operators_client: Client
) -> None:
    reason = "Traceback: " + "x" * 1500 + " the end <b>"

    def breaks(scenario: Scenario, go_on: GoOn) -> Report:
        raise RunFailed(reason)

    run_next(breaks)
    html = page(operators_client, f"/whatif/{started.run_id}/")
    assert reason in text_of(html)
    assert "<b>" not in re.findall(r"<pre.*?</pre>", html, re.S)[0]


def test_cancel_goes_back_to_the_run_and_a_second_one_says_why_not(
    started: SimulationRun, operators_client: Client
) -> None:
    path = f"/whatif/{started.run_id}/cancel/"
    assert operators_client.post(path).status_code == 303
    assert "Cancelled by olga" in text_of(page(operators_client, f"/whatif/{started.run_id}/"))
    again = operators_client.post(path)
    assert again.status_code == 409
    assert "ended already: it is cancelled" in text_of(again.content.decode())


def test_change_and_run_again_keeps_every_value(
    started: SimulationRun, operators_client: Client
) -> None:
    SimulationRun.objects.update(baseline_label="nothing moves")
    scenario = {**started.scenario, "costs": {**started.scenario["costs"], "copy_base_ms": 99.0}}
    SimulationRun.objects.update(scenario=scenario)
    sent = fill(page(operators_client, f"/whatif/?origin=run:{started.run_id}"))
    assert (sent["pool.instances"], sent["compare"]) == ("4", "still")
    assert operators_client.post("/whatif/", sent).status_code == 303
    again = SimulationRun.objects.order_by("pk").last()
    assert again is not None
    # What the form does not have comes from the earlier run as well.
    assert again.scenario == scenario


def test_every_scenario_that_comes_with_ferry_fills_the_form(
    watch: FakeWatch, operators_client: Client
) -> None:
    links = re.findall(r'href="(\?origin=preset[^"]+)"', page(operators_client, "/whatif/"))
    assert links
    for link in links:
        assert fill(page(operators_client, f"/whatif/{link}"))["origin"].startswith("preset:")


def test_a_run_can_be_had_for_the_command_line(
    started: SimulationRun, operators_client: Client, tmp_path: Any
) -> None:
    from engine_pool.simulator.scenario import load_scenario

    for side, kept in (("scenario", started.scenario), ("baseline", started.baseline)):
        answer = operators_client.get(f"/whatif/{started.run_id}/{side}.toml")
        file = tmp_path / f"{side}.toml"
        file.write_bytes(answer.content)
        read = load_scenario(file).to_dict()
        assert {**read, "name": ""} == {**(kept or {}), "name": ""}


def test_who_is_no_operator_neither_sees_nor_starts_nor_cancels(
    started: SimulationRun, outsider: User
) -> None:
    client = Client()
    client.force_login(outsider)
    one = f"/whatif/{started.run_id}/"
    for path in ("/whatif/", one, f"{one}scenario.toml", "/api/v1/whatif", f"/api/v1{one[:-1]}"):
        assert client.get(path).status_code == 403, path
    for path in ("/whatif/", f"{one}cancel/", "/api/v1/whatif", f"/api/v1{one}cancel"):
        assert client.post(path).status_code == 403, path
    assert SimulationRun.objects.get().state == RunState.QUEUED


def test_the_api_starts_watches_and_cancels_a_run(
    watch: FakeWatch, operators_client: Client
) -> None:
    body = {"name": "by api", "scenario": SMALL, "baseline": {**SMALL, "pool": {"instances": 3}}}
    answer = operators_client.post("/api/v1/whatif", body, content_type="application/json")
    assert answer.status_code == 202, answer.json()
    where = answer.headers["Location"]
    told = operators_client.get(where).json()
    assert (told["state"], told["name"], told["report"]) == ("queued", "by api", None)
    assert told["scenario"]["policy"]["migration"] is True
    listed = operators_client.get("/api/v1/whatif?state=queued&limit=1").json()
    assert [r["run_id"] for r in listed["runs"]] == [told["run_id"]]
    assert operators_client.post(f"{where}/cancel").status_code == 202
    again = operators_client.post(f"{where}/cancel")
    assert (again.status_code, again.json()["error"]["type"]) == (409, "conflict_error")
    assert list(AuditEntry.objects.order_by("at").values_list("action", "result")) == [
        ("start_whatif", "done"),
        ("cancel_whatif", "done"),
        ("cancel_whatif", "refused"),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({}, "scenario", id="nothing"),
        pytest.param({"scenario": []}, "scenario", id="a list"),
        pytest.param({"scenario": {}, "speed": 3}, "speed", id="unknown"),
        pytest.param({"scenario": {"pool": 3}}, "pool", id="no section"),
        pytest.param({"scenario": {"pool": {"instances": -1}}}, "pool.instances", id="negative"),
        pytest.param(
            {"scenario": SMALL, "baseline": {"seed": "x"}}, "baseline.seed", id="the other side"
        ),
        pytest.param({"scenario": SMALL, "name": "x" * 81}, "name", id="name too long"),
    ],
)
def test_the_api_names_the_field_that_is_wrong(
    body: dict[str, Any], param: str, watch: FakeWatch, operators_client: Client
) -> None:
    answer = operators_client.post("/api/v1/whatif", body, content_type="application/json")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(f"{param}: ")


def test_an_unknown_run_is_a_404_everywhere(watch: FakeWatch, operators_client: Client) -> None:
    assert operators_client.get("/whatif/none/").status_code == 404
    assert operators_client.post("/whatif/none/cancel/").status_code == 404
    answer = operators_client.get("/api/v1/whatif/none")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "run_id")


def test_the_api_stands_in_the_schema(watch: FakeWatch, operators_client: Client) -> None:
    schema = operators_client.get("/api/v1/schema/?format=json").content.decode()
    for path in ("/api/v1/whatif", "/api/v1/whatif/{run_id}", "/api/v1/whatif/{run_id}/cancel"):
        assert f'"{path}"' in schema, path


def test_what_the_form_shows_it_reads_back() -> None:
    whole = scenario_of({"workload": {"high_share": 0.125}}).to_dict()
    read, errors = whatif_form.read(whatif_form.values_of(whole), whole)
    assert errors == {}
    assert read == whole


def test_other_step_times_begin_anew_and_the_same_ones_stay() -> None:
    base = scenario_of({"costs": {"copy_base_ms": 99.0}}).to_dict()
    values = whatif_form.values_of(base)
    same, _ = whatif_form.read(values, base)
    assert same["costs"]["copy_base_ms"] == 99.0
    other, _ = whatif_form.read({**values, "costs.file": "mine.json"}, base)
    assert other["costs"] == {"file": "mine.json", "time_scale": 1.0}
