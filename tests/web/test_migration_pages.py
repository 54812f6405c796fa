"""The pages of moves: what they say, what they do not claim, and the dialog that begins one."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.fleet.models import AuditEntry
from controlplane.fleet.move_selectors import AbortCount, DowntimePoint
from controlplane.fleet.preflight_values import (
    Applies,
    Forecast,
    Obstacle,
    Pair,
    PairWay,
    PreflightReport,
)
from engine_pool.errors import InstanceLost
from engine_pool.live_view import LiveView
from engine_pool.moves import Moves
from migration.report import MoveReport, MoveState
from tests.web import fake_pool, moves
from tests.web.conftest import FakeView, FakeWatch
from web import move_words, preflight_words
from web.scatter import scatter
from web.views import preflight as preflight_page

FORM = {"destination": "", "reason": "kernel update"}


def text_of(html: str) -> str:
    """Returns what a reader sees, in one line."""
    body = re.sub(r"<script.*?</script>|<title>.*?</title>|<svg.*?</svg>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def page(client: Client, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, path
    html: str = answer.content.decode()
    return html


@pytest.fixture
def shown(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> Callable[[MoveReport], str]:
    """Shows the page of a move."""

    def show(report: MoveReport) -> str:
        view.move(report)
        return page(operators_client, f"/migrations/{report.migration_id}/")

    return show


def test_the_page_of_a_move_says_what_is_known(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.committed()))
    assert "req-8f2c41 moved from i-02 to i-03 Committed" in text
    assert "The reader waited 29.8 ms for the next token; 20.2 ms is usual." in text
    assert "Why it moved" in text
    assert "one long request fills i-02" in text
    assert "21 ms of it fusing blocks" in text


def test_nothing_is_claimed_that_nobody_checked(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.committed()))
    for claim in ("identical", "Nothing was lost", "repeated", "success"):
        assert claim not in text


@pytest.mark.parametrize("report", list(moves.every_kind()), ids=lambda r: f"{r.state}-{r.seq}")
def test_every_report_has_a_page(report: MoveReport, shown: Callable[[MoveReport], str]) -> None:
    html = shown(report)
    assert "None" not in text_of(html)
    assert not re.search(r"\sstyle=|\son[a-z]+=", html)


def test_a_move_that_goes_on_asks_for_more_and_an_ended_one_does_not(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    now_s = time.time()
    report = replace(moves.going_on(100.0, started_unix_s=now_s), at_unix_s=now_s)
    view.move(report)
    part = page(operators_client, "/migrations/mig-1/", hx_request="true")
    assert "<html" not in part
    assert 'data-refresh="/migrations/mig-1/"' in part
    assert "Cancel the move" in part
    view.move(moves.committed(started_unix_s=now_s))
    assert "data-refresh" not in page(operators_client, "/migrations/mig-1/", hx_request="true")


def test_a_paused_move_cannot_be_cancelled_any_more(shown: Callable[[MoveReport], str]) -> None:
    now_s = time.time()
    report = replace(moves.going_on(365.0, started_unix_s=now_s), at_unix_s=now_s)
    assert "Cancel the move" not in shown(report)


def test_a_move_that_fell_silent_is_not_shown_as_alive(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.going_on(100.0, started_unix_s=time.time() - 30)))
    assert re.search(r"No report of it for \d+ s: what became of it is not known here", text)


def test_an_aborted_move_stayed_and_says_what_was_freed(
    shown: Callable[[MoveReport], str],
) -> None:
    text = text_of(shown(moves.aborted()))
    assert "req-77ab02 stayed on i-02 Aborted" in text
    assert "i-03 had 12 free blocks and needed 41. It went on at i-02" in text
    assert "its reader noticed nothing. i-03 freed the 227 blocks" in text


def test_a_dead_destination_freed_nothing() -> None:
    words = move_words.words_of(replace(moves.aborted(), abort_code="peer_lost"), 0.0)
    assert "freed" not in words.sentence
    assert "went with i-03" in words.sentence


def test_a_request_that_ended_first_did_not_stay() -> None:
    ended = replace(moves.aborted(), abort_code="request_finished", abort_reason="it finished")
    words = move_words.words_of(ended, 0.0)
    assert words.verb == "ended on"
    assert "went on" not in words.sentence


def test_a_queued_request_moved_without_a_copy(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.queued()))
    assert "It was waiting in the queue, so it moved without a copy." in text
    assert "nobody decodes," not in text


def test_blocks_of_the_destinations_cache_are_told(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(replace(moves.committed(), cached_blocks=12)))
    assert "12 blocks of i-03's cache, not sent" in text
    assert "12 more were cached" in text


def test_what_a_report_says_is_text_not_html(shown: Callable[[MoveReport], str]) -> None:
    evil = "</script><script>alert(1)</script>"
    html = shown(replace(moves.aborted(), reason=evil, abort_reason=evil, tenant=evil))
    assert "<script>alert" not in html


def test_an_unknown_move_is_not_here(watch: FakeWatch, operators_client: Client) -> None:
    assert operators_client.get("/migrations/nothing/").status_code == 404


# The list


def test_without_moves_the_list_says_when_they_appear(
    watch: FakeWatch, operators_client: Client
) -> None:
    text = text_of(page(operators_client, "/migrations/"))
    assert "No migrations yet" in text
    assert "No move was aborted in the last 24 h" in text


def test_the_list_has_the_newest_first_and_filters(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.move(*moves.several())
    html = page(operators_client, "/migrations/")
    ids = re.findall(r'href="/migrations/([a-z]+-\d)/"', html)
    assert ids[0] == "mig-1"
    assert len(ids) == 9
    aborted = page(operators_client, "/migrations/?state=aborted")
    assert re.findall(r'href="/migrations/([a-z]+-\d)/"', aborted) == ["mig-2"]
    there = page(operators_client, "/migrations/?instance=i-01")
    assert re.findall(r'href="/migrations/([a-z]+-\d)/"', there) == ["mig-3"]
    assert 'value="i-01"' in there
    nothing = text_of(page(operators_client, "/migrations/?instance=nowhere"))
    assert "No move matches the filter" in nothing
    assert "No migrations yet" not in nothing


def test_the_scatter_begins_at_zero_and_holds_all() -> None:
    points = [DowntimePoint(f"m{i}", 100 * i, 10.0 + i, None) for i in range(20)]  # type: ignore[arg-type]
    plot = scatter(points)
    assert plot is not None
    assert len(plot.dots) == 20
    assert all(0 <= d.x <= 100 and 0 <= d.y <= 100 for d in plot.dots)
    assert (plot.x_ticks[0].text, plot.y_ticks[0].text) == ("0", "0")
    assert plot.dots[0].y > plot.dots[-1].y
    assert scatter([]) is None


def test_aborts_are_counted_by_reason(
    watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (AbortCount("no_blocks", 7, "i-03 had 12 free blocks"),)
    monkeypatch.setattr("controlplane.fleet.move_selectors.aborts_by_reason", lambda since: found)
    html = page(operators_client, "/migrations/")
    assert "no blocks 7 i-03 had 12 free blocks" in text_of(html)
    assert "?state=aborted&amp;reason=no_blocks" in html


# The dialog


class Gate:
    """In place of the way to the engines: takes every move, or says why not."""

    def __init__(self) -> None:
        self.wishes: list[dict[str, object]] = []
        self.refusal: tuple[str, str] | None = None
        self.is_lost = False

    async def migrate(self, actor: str, wish: dict[str, object]) -> tuple[str, str] | None:
        if self.is_lost:
            raise InstanceLost("i-02 did not answer.")
        self.wishes.append(wish)
        return self.refusal

    async def cancel_move(self, actor: str, migration_id: str) -> bool:
        return True

    async def measure(self, actor: str, destination_actor: str, size: int) -> dict[str, float]:
        return {"bytes_per_s": 1e9, "round_trip_ms": 0.5}


@pytest.fixture
def live(watch: FakeWatch, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A live view of eight instances and a fake way to their engines."""
    view, gate = LiveView(None), Gate()  # type: ignore[arg-type]
    for status, load in fake_pool.reports(8, 1, time.time()):
        view.apply(status)
        view.apply(load)
    client = SimpleNamespace(
        view=view, moves=Moves(view, gate), config=SimpleNamespace(pool="default"), gate=gate
    )
    for module in ("moves", "move_selectors"):
        monkeypatch.setattr(f"controlplane.fleet.{module}.pool_client", lambda: client)
    monkeypatch.setattr(watch.observer, "_live", view)
    return client


URL = "/requests/i-02-r0/migrate/"


def test_the_dialog_shows_facts_and_destinations_by_freeness_afterwards(
    live: SimpleNamespace, operators_client: Client
) -> None:
    html = page(operators_client, URL)
    text = text_of(html)
    assert "Move i-02-r0 from i-02 ?" in text
    assert "400 tokens of KV cache" in text
    assert "old when this was made" in text
    places = re.findall(r'name="destination" value="([^"]*)"', html)
    plan = live.moves.plan("i-02-r0")
    assert places == ["", *(d.instance for d in plan.destinations if not d.why_not)]
    assert "i-04 cannot: it is draining" in text
    assert re.search(r'value="" required checked', html)


def test_the_size_is_in_mb_once_a_token_is_known(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.view.apply(moves.committed())
    assert "52.4 MB of KV cache, 400 tokens" in text_of(page(operators_client, URL))


def test_a_script_gets_the_form_alone(live: SimpleNamespace, operators_client: Client) -> None:
    part = page(operators_client, URL, hx_request="true")
    assert "<html" not in part
    assert part.lstrip().startswith('<form class="action-form"')


def test_a_press_begins_the_move_and_leads_to_its_page(
    live: SimpleNamespace, operators_client: Client
) -> None:
    answer = operators_client.post(URL, FORM)
    assert answer.status_code == 303
    (wish,) = live.gate.wishes
    assert answer.headers["Location"] == f"/migrations/{wish['migration_id']}/"
    assert wish["destination"] == live.moves.plan("i-02-r0").freest.instance
    assert wish["asked_by"] == "operator olga"
    assert "kernel update" in AuditEntry.objects.get().reason
    assert "Asked" in text_of(page(operators_client, answer.headers["Location"]))


def test_a_refusal_stands_where_the_action_was_and_values_are_kept(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.gate.refusal = ("no_blocks", "i-03 has 12 free blocks and 41 are needed.")
    answer = operators_client.post(URL, {**FORM, "destination": "i-03"})
    html = answer.content.decode()
    assert answer.status_code == 409
    assert "i-03 has 12 free blocks and 41 are needed." in html
    assert 'value="kernel update"' in html
    assert 'value="i-03" checked' in html


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"destination": "", "reason": "  "}, 400, "Say why"),
        ({"reason": "x"}, 400, "Choose where it goes"),
        ({"destination": "i-04", "reason": "x"}, 409, "i-04 cannot take it"),
        ({"destination": "i-99", "reason": "x"}, 409, "There is no instance i-99"),
    ],
)
def test_what_is_wrong_is_said(
    form: dict[str, str], status: int, words: str, live: SimpleNamespace, operators_client: Client
) -> None:
    answer = operators_client.post(URL, form)
    assert answer.status_code == status
    assert words in answer.content.decode()
    assert live.gate.wishes == []


def test_a_wanted_place_that_does_not_fit_is_not_silently_another(
    live: SimpleNamespace, operators_client: Client
) -> None:
    html = page(operators_client, f"{URL}?destination=i-04")
    assert "i-04 cannot take it: it is draining." in html
    assert " checked" not in html.split('<fieldset class="choices">')[1].split("</fieldset>")[0]


def test_a_move_can_be_undone_while_its_request_runs(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.view.apply(replace(moves.committed(), request_id="i-03-r0"))
    html = page(operators_client, "/migrations/mig-1/")
    assert 'data-dialog href="/requests/i-03-r0/migrate/?destination=i-02"' in html
    live.view.apply(replace(moves.committed(migration_id="mig-9"), request_id="gone"))
    assert "Move back" not in page(operators_client, "/migrations/mig-9/")


def test_an_engine_that_does_not_answer_leaves_it_open(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.gate.is_lost = True
    answer = operators_client.post(URL, FORM)
    assert answer.status_code == 503
    assert "Whether the move began will show under Migrations" in answer.content.decode()


def test_a_request_that_is_gone_is_said_so(live: SimpleNamespace, operators_client: Client) -> None:
    answer = operators_client.get("/requests/nobody/migrate/")
    assert answer.status_code == 404
    assert "No instance runs or queues a request nobody." in answer.content.decode()


def test_only_operators_move_and_only_with_a_token(
    live: SimpleNamespace, outsider: User, operator: User
) -> None:
    client = Client()
    client.force_login(outsider)
    for path in (URL, "/migrations/mig-1/cancel/", "/migrations/preflight/"):
        assert client.post(path, FORM).status_code == 403
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    for path in (URL, "/migrations/mig-1/cancel/", "/migrations/preflight/"):
        assert client.post(path, FORM).status_code == 403
    assert live.gate.wishes == []


def test_cancel_goes_back_to_the_page(live: SimpleNamespace, operators_client: Client) -> None:
    now_s = time.time()
    live.view.apply(replace(moves.going_on(100.0, started_unix_s=now_s), at_unix_s=now_s))
    answer = operators_client.post("/migrations/mig-1/cancel/")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/migrations/mig-1/")


def test_a_move_that_ended_meanwhile_cannot_be_cancelled(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.view.apply(moves.committed())
    answer = operators_client.post("/migrations/mig-1/cancel/")
    assert answer.status_code == 409
    assert "No move mig-1 goes on." in answer.content.decode()


# Requests of an instance


def test_an_operator_reaches_migrate_in_two_presses(
    live: SimpleNamespace, operators_client: Client
) -> None:
    cluster = page(operators_client, "/cluster/")
    assert 'href="/instances/i-02/"' in cluster
    instance = page(operators_client, "/instances/i-02/")
    assert 'href="/requests/i-02-r0/migrate/" data-dialog' in instance
    assert page(operators_client, "/requests/i-02-r0/migrate/")


def test_a_pool_of_two_shows_its_requests_on_the_cluster_page(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    html = page(operators_client, "/cluster/")
    assert html.count('data-dialog aria-label="Migrate i-01-') == 10
    assert "first 10 of" in html
    pool(3).observer._picture = None
    assert "data-dialog" not in page(operators_client, "/cluster/")


def test_a_request_on_its_way_has_no_second_button(
    live: SimpleNamespace, operators_client: Client
) -> None:
    now_s = time.time()
    report = moves.going_on(100.0, started_unix_s=now_s)
    live.view.apply(replace(report, at_unix_s=now_s, request_id="i-02-r0"))
    html = page(operators_client, "/instances/i-02/")
    assert "/requests/i-02-r0/migrate/" not in html
    assert '<a href="/migrations/mig-1/">to i-03</a>' in html


def test_requests_of_an_instance_without_a_report_are_unknown(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.report(1)
    view.loads.clear()
    assert "No report of it yet" in text_of(page(operators_client, "/instances/i-01/"))
    assert operators_client.get("/instances/i-77/").status_code == 404


# Pre-flight

MEASURED = PreflightReport(
    at_unix_s=0.0,
    ok=True,
    verdict="Moves work here: a reader waits about 9-11 ms, at every length.",
    serving=("i-01", "i-02", "i-03"),
    token_bytes=131_072,
    block_bytes=2_097_152,
    block_size_tokens=16,
    ways=(
        PairWay("i-01", "i-02", 1.41e9, 0.4),
        PairWay("i-02", "i-01", 0.5e9, 0.4),
        PairWay("i-01", "i-03", None, None, "i-03 did not answer"),
    ),
    left_out=(Pair("i-02", "i-03"),),
    slowest=Pair("i-02", "i-01"),
    step_ms=21.0,
    is_step_assumed=False,
    forecasts=(Forecast(512, 2, (32,), 1, 90.0, 9.0, 69_206_016),),
    self_test=None,
    obstacles=(
        Obstacle("Requests with a LoRA adapter", "It may not be there.", Applies.PER_REQUEST),
        Obstacle("Switched off", "FERRY_MIGRATION is off.", Applies.NO),
    ),
)


def test_without_a_preflight_the_page_says_how_to_make_one(
    watch: FakeWatch, operators_client: Client
) -> None:
    text = text_of(page(operators_client, "/migrations/preflight/"))
    assert "Nobody has measured it" in text
    assert "Measure now" in text


def test_the_preflight_has_the_verdict_first(
    watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(MEASURED, at_unix_s=time.time() - 40)
    monkeypatch.setattr(preflight_page, "preflight_get", lambda: report)
    html = page(operators_client, "/migrations/preflight/")
    text = text_of(html)
    title = re.search(r"<h1>.*?</h1>", html, re.S)
    assert title is not None
    assert "Moves work here" in title[0]
    assert re.search(r"Measured 4\d s ago", text)
    for words in ("131 kB", "1.41", "512 1 + 1 69.2 90 ms 9 ms", "not here"):
        assert words in text, words
    assert "the pool has not made one" in text


def test_the_matrix_tells_slow_failed_and_unmeasured_ways_apart() -> None:
    rows = dict(preflight_words.matrix(MEASURED))
    assert [c.tone for c in rows["i-01"]] == ["same", "fast", "bad"]
    assert [c.tone for c in rows["i-02"]] == ["slow", "same", "none"]
    assert "did not answer" in rows["i-01"][2].title


def test_the_dialog_predicts_by_the_next_longer_forecast() -> None:
    words = preflight_words.forecast_for(MEASURED.forecasts, 400)
    assert words == "at most 90 ms to copy, 9 ms to wait (for 512 tokens)"
    assert preflight_words.forecast_for(MEASURED.forecasts, 600) == ""


def test_measuring_anew_comes_back_to_the_page(
    watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(preflight_page, "preflight_measure", asked.append)
    answer = operators_client.post("/migrations/preflight/", {"lengths": "128, 1024"})
    assert (answer.status_code, asked) == (303, [[128, 1024]])
    wrong = operators_client.post("/migrations/preflight/", {"lengths": "ten"})
    assert wrong.status_code == 400
    assert "expected up to 8 whole numbers" in wrong.content.decode()
    assert 'value="ten"' in wrong.content.decode()


def test_states_have_their_word() -> None:
    words = {s: move_words.words_of(moves.bare(s), 0.0).verb for s in MoveState}
    assert words[MoveState.COMMITTED] == "moved from"
    assert words[MoveState.ABORTED] == "stayed on"
    assert {words[s] for s in MoveState if not s.is_end} == {"moves from"}
