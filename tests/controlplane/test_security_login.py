"""Logging in: throttled by person and address, with a new session, and back to our own pages."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.sessions import SessionStore, digest
from tests.web.conftest import plain_static_files

__all__ = ["plain_static_files"]

PASSWORD = "correct-horse-battery"
FORMS = ["/login/", "/admin/login/"]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def olga() -> User:
    return User.objects.create_user("olga", password=PASSWORD, is_staff=True)


def log_in(
    password: str, *, name: str = "olga", address: str = "192.0.2.1", form: str = "/login/"
) -> "HttpResponse":
    fields = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address).post(form, fields)


def fail_until_locked(form: str = "/login/") -> "HttpResponse":
    for _ in range(settings.AXES_FAILURE_LIMIT - 1):
        assert log_in("wrong", form=form).status_code == 200
    return log_in("wrong", form=form)


@pytest.mark.parametrize("form", FORMS)
def test_who_fails_too_often_waits_even_with_the_right_password(form: str) -> None:
    locked = fail_until_locked(form)
    assert locked.status_code == 429
    assert locked["Retry-After"] == "900"
    assert b"Too many failed logins" in locked.content
    assert log_in(PASSWORD, form=form).status_code == 429
    assert log_in(PASSWORD, form="/login/").status_code == 429, "both forms count together"


def test_the_same_person_elsewhere_and_others_from_there_are_not_kept_out() -> None:
    User.objects.create_user("oscar", password=PASSWORD)
    fail_until_locked()
    assert log_in(PASSWORD, address="192.0.2.2").status_code == 302
    assert log_in(PASSWORD, name="oscar").status_code == 302


def test_the_wait_ends_by_itself() -> None:
    fail_until_locked()
    long_ago = timezone.now() - settings.AXES_COOLOFF_TIME - timedelta(seconds=1)
    assert AccessAttempt.objects.update(attempt_time=long_ago) == 1
    assert log_in(PASSWORD).status_code == 302


def test_a_login_that_works_forgets_the_failures_before_it() -> None:
    for _ in range(3):
        for _ in range(settings.AXES_FAILURE_LIMIT - 1):
            log_in("wrong")
        assert log_in(PASSWORD).status_code == 302


def test_the_audit_tells_of_a_lockout_once_and_has_no_password() -> None:
    fail_until_locked()
    log_in("wrong-again")
    entry = AuditEntry.objects.get(action="login_locked")
    assert (entry.who, entry.result) == ("olga", "refused")
    assert entry.detail == "5 failed logins from 192.0.2.1"


def test_a_login_makes_a_new_session_and_a_logout_ends_it() -> None:
    client = Client()
    client.get("/login/")
    session = client.session
    session["before"] = "1"
    session.save()
    client.cookies[settings.SESSION_COOKIE_NAME] = session.session_key
    answer = client.post("/login/", {"username": "olga", "password": PASSWORD})
    cookie = answer.cookies[settings.SESSION_COOKIE_NAME]
    assert cookie.value != session.session_key
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    client.post("/logout/")
    client.cookies[settings.SESSION_COOKIE_NAME] = cookie.value
    assert client.get("/password/").status_code == 302, "an old session is none"


def test_the_table_of_sessions_does_not_open_them() -> None:
    client = Client()
    client.post("/login/", {"username": "olga", "password": PASSWORD})
    key = client.cookies[settings.SESSION_COOKIE_NAME].value
    row = Session.objects.get()
    assert row.session_key == digest(key)
    assert key not in row.session_data
    assert client.get("/password/").status_code == 200
    client.cookies[settings.SESSION_COOKIE_NAME] = row.session_key
    assert client.get("/password/").status_code == 302, "what stands in the table opens nothing"


@pytest.mark.django_db(transaction=True)
async def test_sessions_work_without_blocking_too() -> None:
    store = SessionStore()
    await store.aset("name", "olga")
    await store.asave()
    key = store.session_key
    assert key is not None
    assert await SessionStore(key).aget("name") == "olga"
    assert await store.aexists(key)
    await store.acycle_key()
    assert not await store.aexists(key)
    await store.aflush()
    assert not await Session.objects.aexists()


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_after_login_and_a_change_of_theme_one_stays_on_our_pages(target: str) -> None:
    client = Client()
    fields = {"username": "olga", "password": PASSWORD, "next": target}
    assert client.post("/login/", fields)["Location"] == settings.LOGIN_REDIRECT_URL
    answer = client.post("/theme/", {"theme": "dark", "next": target})
    assert "evil" not in answer["Location"]
    assert not answer["Location"].startswith("javascript")


@pytest.mark.parametrize("password", ["short-1", "password1234", "123456789012345", "olga-olga"])
def test_weak_passwords_are_refused(password: str) -> None:
    with pytest.raises(ValidationError):
        validate_password(password, User(username="olga-olga"))


@pytest.mark.parametrize("form", FORMS)
def test_a_form_without_our_token_is_refused(form: str) -> None:
    client = Client(enforce_csrf_checks=True)
    answer = client.post(form, {"username": "olga", "password": PASSWORD})
    assert answer.status_code == 403
