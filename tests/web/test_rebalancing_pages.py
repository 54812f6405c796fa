"""The rebalancer on the pages: its line and thresholds, its pause, its view of an instance."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from engine_pool.errors import MoveRefused, StoreUnavailable
from engine_pool.rebalancing_facts import (
    Pause,
    RebalancerReport,
    RebalancerState,
    RebalancingFacts,
)
from tests.web.conftest import FakeWatch
from tests.web.reading import page, text_of

Pool = Callable[[int], FakeWatch]
PAUSE_URL, RESUME_URL = "/rebalancing/pause/", "/rebalancing/resume/"


def report_of(watch: FakeWatch, **changes: Any) -> RebalancerReport:
    base = RebalancerReport(
        at_unix_s=watch.observer.look().at_unix_s,
        state=RebalancerState.ON,
        why="",
        below_steps=48,
        above_steps=64,
        interval_ms=200,
        moves_per_instance=2,
        tokens_per_round=65_536,
    )
    return replace(base, **changes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the dialogs asked for."""
    made: list[dict[str, Any]] = []
    for name in ("rebalancing_pause", "rebalancing_resume"):
        monkeypatch.setattr(f"web.views.rebalancing.{name}", lambda **wish: made.append(wish))
    return made


def look_anew(watch: FakeWatch) -> None:
    watch.observer._picture = None


def test_the_cluster_page_says_what_it_does(pool: Pool, operators_client: Client) -> None:
    watch = pool(8)
    watch.observer.rebalancing = RebalancingFacts(None, report_of(watch, started_lately=7))
    look_anew(watch)
    html = page(operators_client, "/cluster/")
    assert "Automatic moves from under 48 to over 64 steps; 7 in 5 min" in text_of(html)
    assert '"thresholds": [48' in html.replace('"thresholds":[', '"thresholds": [')
    assert PAUSE_URL in html


def test_a_pause_stands_in_the_strip(pool: Pool, operators_client: Client) -> None:
    watch = pool(2)
    at_unix_s = watch.observer.look().at_unix_s
    pause = Pause("olga", at_unix_s, None, "kernel update")
    watch.observer.rebalancing = RebalancingFacts(pause, report_of(watch))
    look_anew(watch)
    text = text_of(page(operators_client, "/cluster/"))
    assert "Automatic moves are paused by olga until it is resumed" in text
    picture = watch.observer.look()
    assert picture.rebalancing.state == "paused"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("i-02", "The rebalancer gives requests away: ", id="crowded"),
        pytest.param("i-04", "The rebalancer gives its requests away: it drains", id="draining"),
        pytest.param("i-05", ", and it takes no requests", id="cordoned"),
        pytest.param("i-03", "leaves it alone and may send it requests: ", id="free"),
        pytest.param("i-08", "there is no fresh report", id="starting"),
    ],
)
def test_an_instances_page_says_what_the_rebalancer_thinks_of_it(
    pool: Pool, operators_client: Client, name: str, words: str
) -> None:
    watch = pool(8)
    watch.observer.rebalancing = RebalancingFacts(None, report_of(watch))
    look_anew(watch)
    assert words in text_of(page(operators_client, f"/instances/{name}/"))


def test_while_it_is_paused_an_instances_page_says_that(
    pool: Pool, operators_client: Client
) -> None:
    watch = pool(2)
    watch.observer.rebalancing = RebalancingFacts(Pause("olga", 0, None), report_of(watch))
    look_anew(watch)
    assert "The rebalancer is paused." in text_of(page(operators_client, "/instances/i-01/"))


@pytest.mark.parametrize(
    ("chosen", "minutes"),
    [
        pytest.param("15", 15, id="a quarter"),
        pytest.param("60", 60, id="an hour"),
        pytest.param("resumed", None, id="until it is resumed"),
    ],
)
def test_a_press_pauses_and_leads_back(
    pool: Pool,
    operators_client: Client,
    asked: list[dict[str, Any]],
    chosen: str,
    minutes: int | None,
) -> None:
    pool(2)
    assert "Pause rebalancing?" in text_of(page(operators_client, PAUSE_URL))
    answer = operators_client.post(PAUSE_URL, {"minutes": chosen, "reason": "kernel update"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/cluster/")
    assert (asked[0]["minutes"], asked[0]["reason"]) == (minutes, "kernel update")
    assert asked[0]["user"].get_username() == "olga"


@pytest.mark.parametrize("wrong", ["", "0", "-5", "soon", "99999", "\u0661\u0665"])
def test_a_wrong_time_is_told_in_the_dialog(
    pool: Pool, operators_client: Client, asked: list[dict[str, Any]], wrong: str
) -> None:
    pool(2)
    answer = operators_client.post(PAUSE_URL, {"minutes": wrong})
    assert answer.status_code == 400
    assert "minutes: choose" in answer.content.decode()
    assert asked == []


@pytest.mark.parametrize(
    ("url", "form", "error", "status"),
    [
        pytest.param(PAUSE_URL, {"minutes": "15"}, StoreUnavailable("away"), 503, id="store"),
        pytest.param(RESUME_URL, {}, MoveRefused("not paused", "not_paused"), 409, id="not paused"),
    ],
)
def test_what_is_refused_stands_in_the_dialog(
    pool: Pool,
    operators_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    form: dict[str, str],
    error: Exception,
    status: int,
) -> None:
    pool(2)

    def refuse(**wish: object) -> None:
        raise error

    for name in ("rebalancing_pause", "rebalancing_resume"):
        monkeypatch.setattr(f"web.views.rebalancing.{name}", refuse)
    answer = operators_client.post(url, form)
    assert answer.status_code == status
    assert str(error) in answer.content.decode()


def test_a_press_resumes(pool: Pool, operators_client: Client, asked: list[dict[str, Any]]) -> None:
    pool(2)
    assert "Resume rebalancing?" in text_of(page(operators_client, RESUME_URL))
    assert operators_client.post(RESUME_URL, {"reason": "done"}).status_code == 303
    assert asked[0]["reason"] == "done"


def test_only_operators_may(pool: Pool, outsider: object) -> None:
    pool(2)
    client = Client()
    client.force_login(outsider)
    assert client.post(PAUSE_URL, {"minutes": "15"}).status_code == 403
    assert client.post(RESUME_URL).status_code == 403
