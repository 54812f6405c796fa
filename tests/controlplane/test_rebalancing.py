"""Pausing the rebalancer: in the store, in the audit log, over the API; its picture and metrics."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.fleet import api_rebalancing, rebalancing
from controlplane.fleet.rebalancing import rebalancing_get, rebalancing_pause, rebalancing_resume
from controlplane.fleet.rebalancing_metrics import families_of
from controlplane.fleet.rebalancing_picture import rebalancing_row, state_of, strip_note
from engine_pool.config import PoolConfig
from engine_pool.errors import MoveRefused, StoreUnavailable
from engine_pool.policy.settings import RebalanceRule
from engine_pool.rebalancing_facts import (
    PairFact,
    Pause,
    RebalancerReport,
    RebalancerState,
    RebalancingFacts,
    read_facts,
    write_report,
)
from engine_pool.store import connect_async

NOW = 1_000_000.0
REPORT = RebalancerReport(
    at_unix_s=NOW,
    state=RebalancerState.ON,
    why="",
    below_steps=48,
    above_steps=64,
    interval_ms=200,
    moves_per_instance=2,
    tokens_per_round=65_536,
    last_round_unix_s=NOW - 0.2,
    round_ms=0.4,
    pairs=(PairFact("i-01", "i-02", "i-01 3.0 < 48 and i-02 204 > 64"),),
    pairs_total=1,
    rounds_total=77,
    started_total=12,
    refused_total={"no_blocks": 2, "never heard of": 1},
    started_lately=5,
    refused_lately={"no_blocks": 1},
)
PAUSE = Pause("olga", NOW, NOW + 900, "kernel update")


@pytest.fixture
def watch(store_url: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    # A client for each question: every call here runs in an event loop of its own.
    config = PoolConfig(redis_url=store_url)

    def client() -> SimpleNamespace:
        return SimpleNamespace(store=connect_async(config.redis_url), config=config)

    made = SimpleNamespace(pool="default", observer=SimpleNamespace(rebalancing=RebalancingFacts()))
    for module in (rebalancing, api_rebalancing):
        monkeypatch.setattr(module, "pool_client", client)
    monkeypatch.setattr(rebalancing, "fleet_watch", lambda: made)
    return made


@pytest.fixture
def olga(db: None) -> User:
    return User.objects.create_user("olga", password="x", is_staff=True)


@pytest.fixture
def post(olga: User) -> Callable[..., Any]:
    client = Client()
    client.force_login(olga)
    return lambda path, body: client.post(path, body, content_type="application/json")


def kept(store_url: str) -> RebalancingFacts:
    return asyncio.run(read_facts(connect_async(store_url)))


def test_a_pause_is_kept_and_leaves_an_audit_row(
    watch: SimpleNamespace, olga: User, store_url: str
) -> None:
    before_unix_s = time.time()
    pause = rebalancing_pause(user=olga, minutes=15, reason=" kernel update ")
    assert kept(store_url).pause == pause == watch.observer.rebalancing.pause
    assert (pause.by, pause.reason) == ("olga", "kernel update")
    assert pause.until_unix_s is not None
    assert pause.until_unix_s == pytest.approx(before_unix_s + 900, abs=60)
    audit = AuditEntry.objects.get()
    assert (audit.who, audit.action, audit.object) == ("olga", "pause_rebalancing", "default")
    assert (audit.result, audit.reason, audit.before) == ("done", "kernel update", None)
    assert audit.after["pause"]["until_unix_s"] == pause.until_unix_s


def test_it_is_resumed_once(watch: SimpleNamespace, olga: User, store_url: str) -> None:
    rebalancing_pause(user=olga, minutes=None, reason="")
    rebalancing_resume(user=olga, reason="done with it")
    assert kept(store_url).pause is None
    with pytest.raises(MoveRefused, match="not paused"):
        rebalancing_resume(user=olga)
    done, refused = AuditEntry.objects.filter(action="resume_rebalancing").order_by("at")
    assert (done.result, done.before["pause"]["by"]) == (AuditResult.DONE, "olga")
    assert (refused.result, refused.detail) == (AuditResult.REFUSED, "Rebalancing is not paused.")


def test_a_store_that_is_away_is_told_and_leaves_an_audit_row(
    watch: SimpleNamespace, olga: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = SimpleNamespace(store=connect_async("redis://127.0.0.1:1/0"), config=PoolConfig())
    monkeypatch.setattr(rebalancing, "pool_client", lambda: away)
    with pytest.raises(StoreUnavailable):
        rebalancing_pause(user=olga, minutes=15, reason="")
    assert AuditEntry.objects.get().result == AuditResult.FAILED


def test_the_api_tells_what_the_pool_process_told(
    watch: SimpleNamespace, post: Callable[..., Any], olga: User, store_url: str
) -> None:
    client = Client()
    client.force_login(olga)
    body = client.get("/api/v1/rebalancing").json()
    assert (body["state"], body["pause"], body["last_round_age_s"]) == ("silent", None, None)
    assert body["below_steps"] == 48
    fresh = replace(REPORT, at_unix_s=time.time(), last_round_unix_s=time.time())
    asyncio.run(write_report(connect_async(store_url), fresh))
    body = client.get("/api/v1/rebalancing").json()
    assert (body["state"], body["above_steps"], body["rounds_total"]) == ("on", 64, 77)
    assert body["pairs"][0]["reason"] == "i-01 3.0 < 48 and i-02 204 > 64"
    assert body["refused_lately"] == {"no_blocks": 1}
    assert 0 <= body["last_round_age_s"] < 60


def test_the_api_pauses_and_resumes(watch: SimpleNamespace, post: Callable[..., Any]) -> None:
    answer = post("/api/v1/rebalancing/pause", {"minutes": 15, "reason": "kernel update"})
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["pause"]["by"]) == ("paused", "olga")
    assert post("/api/v1/rebalancing/resume", {}).json()["pause"] is None
    again = post("/api/v1/rebalancing/resume", {})
    assert (again.status_code, again.json()["error"]["reason"]) == (409, "not_paused")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({}, "minutes", id="it must be said"),
        pytest.param({"minutes": 0}, "minutes", id="zero"),
        pytest.param({"minutes": "soon"}, "minutes", id="no number"),
        pytest.param({"minutes": 20_000}, "minutes", id="weeks"),
        pytest.param({"minutes": 1, "hours": 1}, "hours", id="no such field"),
    ],
)
def test_bad_input_names_the_field(
    watch: SimpleNamespace, post: Callable[..., Any], body: dict[str, object], field: str
) -> None:
    answer = post("/api/v1/rebalancing/pause", body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert not AuditEntry.objects.exists()


def test_only_operators_may(watch: SimpleNamespace, db: None) -> None:
    client = Client()
    client.force_login(User.objects.create_user("oscar", password="x"))
    assert client.get("/api/v1/rebalancing").status_code == 403
    answer = client.post("/api/v1/rebalancing/pause", {"minutes": 1}, "application/json")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("facts", "state", "why"),
    [
        pytest.param(RebalancingFacts(), "silent", "not said anything yet", id="nothing told"),
        pytest.param(RebalancingFacts(None, REPORT), "on", "", id="it works"),
        pytest.param(
            RebalancingFacts(None, replace(REPORT, at_unix_s=NOW - 9)),
            "silent",
            "for 9 s",
            id="old",
        ),
        pytest.param(RebalancingFacts(PAUSE, REPORT), "paused", "olga", id="paused, not yet told"),
        pytest.param(
            RebalancingFacts(replace(PAUSE, until_unix_s=NOW - 1), REPORT), "on", "", id="over"
        ),
        pytest.param(
            RebalancingFacts(None, replace(REPORT, state=RebalancerState.PAUSED, why="paused")),
            "on",
            "",
            id="resumed, not yet told",
        ),
        pytest.param(
            RebalancingFacts(
                PAUSE, replace(REPORT, state=RebalancerState.FORBIDDEN, why="tokens differ")
            ),
            "forbidden",
            "tokens differ",
            id="paused and forbidden",
        ),
    ],
)
def test_the_state_is_that_of_now(facts: RebalancingFacts, state: str, why: str) -> None:
    found = state_of(facts, NOW)
    assert found[0] == state
    assert why in found[1]


def test_the_strip_says_who_paused_it_until_when_and_why() -> None:
    facts = RebalancingFacts(PAUSE, REPORT)
    row = rebalancing_row(facts, RebalanceRule(), NOW)
    assert row.line == "Automatic moves are paused by olga until 14:01 UTC"
    assert strip_note(row, facts) == f"{row.line}: kernel update."
    calm = RebalancingFacts(None, REPORT)
    assert strip_note(rebalancing_row(calm, RebalanceRule(), NOW), calm) == ""


def test_the_row_has_the_pools_own_thresholds() -> None:
    row = rebalancing_row(RebalancingFacts(None, REPORT), RebalanceRule(), NOW)
    assert (row.below_steps, row.above_steps) == (48, 64)
    assert row.line == ("Automatic moves from under 48 to over 64 steps; 5 in 5 min, 1 refused")


def test_metrics_have_bounded_labels() -> None:
    found = {
        (s.name, *s.labels.values()): s.value
        for family in families_of({"default": RebalancingFacts(PAUSE, REPORT)}, NOW)
        for s in family.samples
    }
    assert found[("ferry:rebalancer_paused", "default")] == 1
    assert found[("ferry:rebalancer_rounds_total", "default")] == 77
    assert found[("ferry:rebalancer_moves_started_total", "default")] == 12
    assert found[("ferry:rebalancer_moves_refused_total", "default", "no_blocks")] == 2
    assert found[("ferry:rebalancer_moves_refused_total", "default", "other")] == 1
    assert found[("ferry:rebalancer_last_round_age_seconds", "default")] == pytest.approx(0.2)
    assert found[("ferry:rebalancer_state", "default", "on")] == 1


def test_without_a_report_only_the_pause_is_known() -> None:
    (paused,) = families_of({"default": RebalancingFacts()}, NOW)
    assert [s.value for s in paused.samples] == [0.0]


def test_reading_updates_the_pages_picture(
    watch: SimpleNamespace, store_url: str, store: "redis.Redis[bytes]", db: None
) -> None:
    asyncio.run(write_report(connect_async(store_url), REPORT))
    assert rebalancing_get().report == REPORT
    assert watch.observer.rebalancing.report == REPORT
