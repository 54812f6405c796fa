"""Pages, admin and REST while the database is away: a 503 that says why, and no stack trace."""

from dataclasses import replace
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client, RequestFactory

from controlplane import database_away
from controlplane.fleet import watch
from controlplane.tenants.key_cache import STALE_MAX_S
from tests.web.conftest import FakeWatch

PAGES = ("/cluster/", "/login/", "/admin/login/", "/tenants/")


@pytest.fixture
def known_away(watch: FakeWatch, monkeypatch: pytest.MonkeyPatch) -> FakeWatch:
    """The probe has found that the database does not answer."""
    monkeypatch.setattr("controlplane.fleet.watch._watches", {"default": watch})
    watch.observer.probes = replace(watch.observer.probes, database_reads=False)
    return watch


@pytest.mark.parametrize("path", PAGES)
def test_a_page_says_why_without_a_query(known_away: FakeWatch, path: str) -> None:
    # Without a database mark: a query would be an error of its own.
    answer = Client().get(path)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == str(database_away.RETRY_S)
    text = answer.content.decode()
    assert "The database does not answer" in text
    assert f"for {STALE_MAX_S / 60:.0f} minutes" in text
    assert 'http-equiv="refresh"' in text


def test_a_form_is_not_sent_again_by_itself(known_away: FakeWatch) -> None:
    answer = Client().post("/login/", {"username": "a", "password": "b"})
    assert answer.status_code == 503
    text = answer.content.decode()
    assert "was not done" in text
    assert 'http-equiv="refresh"' not in text


def test_rest_says_why_in_its_own_shape(known_away: FakeWatch) -> None:
    answer = Client().get("/api/v1/tenants")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "database_unavailable"
    assert answer.headers["Retry-After"] == str(database_away.RETRY_S)


def test_pages_are_back_with_the_database(known_away: FakeWatch) -> None:
    known_away.observer.probes = replace(known_away.observer.probes, database_reads=True)
    assert Client().get("/livez-of-no-page/").status_code == 404


@pytest.mark.parametrize("error", [OperationalError("locked"), InterfaceError("closed")])
def test_the_first_page_that_meets_it_says_so_too(
    watch: FakeWatch, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the probe has noticed."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("controlplane.sessions.SessionStore._rows", fail)
    client = Client(raise_request_exception=False)
    client.cookies["sessionid"] = "a" * 32
    answer = client.get("/cluster/")
    assert answer.status_code == 503
    assert "The database does not answer" in answer.content.decode()


def test_other_failures_stay_what_they_are() -> None:
    assert not database_away.is_away(ValueError("a bug"))
    assert not database_away.is_away(None)
    page = database_away.answer(RequestFactory().get("/cluster/"))
    assert page.status_code == 503


def test_no_watch_means_that_nobody_has_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.fleet.watch._watches", {})
    assert not watch.database_is_away()
