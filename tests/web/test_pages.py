"""The pages as they come from the server: for whom, with which pools, and with nothing known."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.fleet.models import FleetEventRecord
from tests.web.conftest import FakeView, FakeWatch
from web.live import ROWS_MAX

PAGES = (
    "/events/",
    "/cluster/",
    "/cluster/requests/",
    "/instances/i-01/",
    "/live/snapshot/",
    "/migrations/",
    "/migrations/preflight/",
    "/playground/",
    "/status/",
    "/whatif/",
)
API = (
    "/api/v1/snapshot",
    "/api/v1/instances",
    "/api/v1/events",
    "/api/v1/history",
    "/api/v1/whatif",
)


@pytest.mark.django_db
@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_is_sent_to_the_login(path: str, watch: FakeWatch) -> None:
    answer = Client().get(path)
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/login/?next=")


@pytest.mark.parametrize("path", [*PAGES, *API])
def test_who_is_no_operator_is_refused(path: str, watch: FakeWatch, outsider: User) -> None:
    client = Client()
    client.force_login(outsider)
    assert client.get(path).status_code == 403


@pytest.mark.django_db
@pytest.mark.parametrize("path", API)
def test_the_api_refuses_a_stranger(path: str, watch: FakeWatch) -> None:
    answer = Client().get(path)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", PAGES)
def test_an_operator_sees_the_page(
    path: str, pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    assert operators_client.get(path).status_code == 200


@pytest.mark.parametrize("count", [0, 1, 2, 16, 17, 500])
def test_the_cluster_page_works_for_every_size(
    count: int, pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(count)
    html = operators_client.get("/cluster/").content.decode()
    rows, cells = html.count('<tr class="row"'), html.count('<svg class="cell"')
    if count <= ROWS_MAX:
        # One more stands in the template for new rows.
        assert rows == count + 1
    else:
        assert cells >= count
        assert rows == 6 + 1
    assert ("No instance yet" in html and 'id="no-instance"' in html) or count
    assert len(html) < 700_000


def test_rows_of_a_large_pool_say_what_is_left_out(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(500)
    html = operators_client.get("/cluster/?view=rows").content.decode()
    assert f"first {ROWS_MAX} of 500" in html
    assert html.count('<tr class="row"') == ROWS_MAX + 1


def test_an_instance_without_a_report_shows_dashes(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.report(1)
    view.loads.clear()
    html = operators_client.get("/cluster/").content.decode()
    row = re.search(r'<tr class="row" data-name="i-01".*?</tr>', html, re.DOTALL)
    assert row is not None
    assert row[0].count("–") == 5  # noqa: RUF001
    assert "no report yet" in row[0]


def test_a_load_without_optional_fields_is_shown(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.report(1)
    name = next(iter(view.loads))
    view.loads[name] = replace(view.loads[name], step_ms=None, last_token_unix_s=None)
    assert operators_client.get("/cluster/").status_code == 200


def test_names_from_the_pool_are_text_not_html(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.report(1)
    name = next(iter(view.statuses))
    evil = "</script><script>alert(1)</script>"
    view.statuses[name] = replace(view.statuses[name], cause=evil, node=evil)
    html = operators_client.get("/cluster/").content.decode()
    assert "<script>alert" not in html


def test_pages_have_no_inline_script_or_style(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(8)
    for path in (*PAGES, "/login/", "/nothing-here/"):
        html = operators_client.get(path).content.decode()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", html), path
        for script in re.findall(r"<script[^>]*>", html):
            assert "src=" in script or 'type="application/json"' in script, path


def test_pages_load_nothing_from_elsewhere(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    html = operators_client.get("/cluster/").content.decode()
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)


def test_live_pages_are_not_cached(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(1)
    assert operators_client.get("/cluster/").headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(("theme", "attribute"), [("dark", True), ("system", False), ("x", False)])
def test_the_theme_is_kept_in_a_cookie_that_the_server_reads(
    theme: str, attribute: bool, watch: FakeWatch, operators_client: Client
) -> None:
    answer = operators_client.post("/theme/", {"theme": theme, "next": "/status/"})
    assert answer.headers["Location"] == "/status/"
    html = operators_client.get("/status/").content.decode()
    assert (f'data-theme="{theme}"' in html.split(">", 2)[1]) is attribute


def test_the_theme_does_not_send_one_elsewhere(watch: FakeWatch, operators_client: Client) -> None:
    answer = operators_client.post("/theme/", {"theme": "dark", "next": "https://evil.example/"})
    assert answer.headers["Location"] == "/"


def test_login_and_logout(watch: FakeWatch, operator: User) -> None:
    client = Client()
    assert client.get("/login/").status_code == 200
    wrong = client.post("/login/", {"username": "olga", "password": "y"})
    assert 'role="alert"' in wrong.content.decode()
    right = client.post("/login/", {"username": "olga", "password": "x"})
    assert right.headers["Location"] == "/"
    assert client.post("/logout/").headers["Location"] == "/login/"
    assert client.get("/cluster/").status_code == 302


def test_the_home_page_is_the_cluster_for_who_has_left_the_first_steps(
    watch: FakeWatch, operators_client: Client
) -> None:
    assert operators_client.get("/").headers["Location"] == "/welcome/"
    operators_client.post("/welcome/leave/")
    assert operators_client.get("/").headers["Location"] == "/cluster/"


def test_forms_need_the_csrf_token(watch: FakeWatch, operator: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    for path in ("/theme/", "/logout/", "/playground/stream/", "/playground/stop/"):
        assert client.post(path).status_code == 403, path


def test_the_polled_snapshot_names_unknown_topics(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    good = operators_client.get("/live/snapshot/?topics=cluster:default,strip").json()
    assert [m["topic"] for m in good["messages"]] == ["cluster:default", "strip"]
    bad = operators_client.get("/live/snapshot/?topics=secrets")
    assert bad.status_code == 400
    assert "secrets" in bad.json()["message"]


def test_older_events_come_from_the_database_page_by_page(
    watch: FakeWatch, operators_client: Client
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    FleetEventRecord.objects.bulk_create(
        FleetEventRecord(
            entry_id=str(i), at=start + timedelta(seconds=i), kind="k", headline=f"event {i}."
        )
        for i in range(60)
    )
    whole = operators_client.get("/events/").content.decode()
    assert "event 59." in whole
    assert "event 9." not in whole
    before = re.search(r"before=([0-9.]+)", whole)
    assert before is not None
    part = operators_client.get(f"/events/?before={before[1]}", headers={"HX-Request": "true"})
    html = part.content.decode()
    assert "<html" not in html
    assert html.count("data-key=") == 10
    assert "event 9." in html
    assert "Older" not in html


@pytest.mark.parametrize("before", ["x", "1e99", "nan"])
def test_a_bad_time_is_refused(before: str, watch: FakeWatch, operators_client: Client) -> None:
    answer = operators_client.get(f"/events/?before={before}")
    assert answer.status_code == 400
    assert answer.content.startswith(b"before:")
