"""API keys: their format, their cache, and that their secrets stay secret."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError

from controlplane.log_filter import HideSecrets
from controlplane.tenants.key_cache import FRESH_S, STALE_MAX_S, DatabaseAway, KeyCache
from controlplane.tenants.keys import digest, make_key, parse_key
from controlplane.tenants.selectors import KeyPolicy
from tests.controlplane.fakes import until


def test_a_key_has_a_public_id_and_a_secret_of_256_bits() -> None:
    key = make_key()
    presented = parse_key(key.text)
    assert presented is not None
    assert presented.public_id == key.public_id
    assert presented.matches(key.secret_digest)
    assert len(presented.secret) >= 43
    assert presented.secret not in (key.secret_digest, key.public_id)
    assert make_key().text != key.text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("sk-", id="prefix alone"),
        pytest.param("sk-abc", id="no secret"),
        pytest.param("sk-abc-", id="empty secret"),
        pytest.param("pk-abc-def", id="other prefix"),
        pytest.param("sk-abc-" + "x" * 500, id="too long"),
        pytest.param("sk-abc-dé", id="not ascii"),
    ],
)
def test_what_is_no_key_is_none(text: str) -> None:
    assert parse_key(text) is None


class Database:
    """Stands for the query; a clock to move by hand."""

    def __init__(self) -> None:
        self.key = make_key()
        self.policy: KeyPolicy | None = KeyPolicy(
            key_id=1, secret_digest=self.key.secret_digest, tenant_id=1, tenant="t"
        )
        self.queries = 0
        self.is_away = False
        self.now_s = 0.0
        self.cache = KeyCache(self.query, lambda: self.now_s)

    def query(self, *, public_id: str) -> KeyPolicy | None:
        self.queries += 1
        if self.is_away:
            raise DatabaseError("away")
        return self.policy if public_id == self.key.public_id else None

    def change(self, **fields: object) -> None:
        kept = {f: getattr(self.policy, f) for f in KeyPolicy.__dataclass_fields__}
        self.policy = KeyPolicy(**{**kept, **fields})  # type: ignore[arg-type]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr("controlplane.tenants.key_cache.close_old_connections", lambda: None)
    monkeypatch.setattr("controlplane.tenants.key_cache.keys_note_used", lambda used: None)
    return Database()


async def test_a_right_key_is_found_and_asked_for_once(database: Database) -> None:
    for _ in range(5):
        policy = await database.cache.find(database.key.text)
        assert policy is not None
        assert policy.tenant == "t"
    assert database.queries == 1


async def test_a_wrong_secret_or_unknown_id_is_refused(database: Database) -> None:
    other = make_key()
    assert await database.cache.find(f"sk-{database.key.public_id}-{'x' * 43}") is None
    assert await database.cache.find(other.text) is None


async def test_a_revoked_key_stops_within_a_second(database: Database) -> None:
    assert await database.cache.find(database.key.text)
    database.change(is_active=False)
    database.now_s += FRESH_S + 0.01
    assert await database.cache.find(database.key.text) is None


async def test_an_expired_key_is_refused(database: Database) -> None:
    database.change(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert await database.cache.find(database.key.text) is None


async def test_a_known_key_outlives_the_database_for_a_bounded_time(database: Database) -> None:
    assert await database.cache.find(database.key.text)
    database.is_away = True
    database.now_s = STALE_MAX_S - 1
    assert await database.cache.find(database.key.text)
    with pytest.raises(DatabaseAway):
        await database.cache.find(make_key().text)
    database.now_s = STALE_MAX_S + 1
    with pytest.raises(DatabaseAway):
        await database.cache.find(database.key.text)
    database.is_away = False
    assert await database.cache.find(database.key.text)


def test_logs_never_hold_a_secret() -> None:
    key = make_key()
    record = logging.LogRecord("x", logging.INFO, "f", 1, "got %s", (key.text,), None)
    assert HideSecrets().filter(record)
    assert digest("x") not in record.getMessage()
    # The secret may have hyphens in it: its end must be gone as well as the whole.
    assert key.text[-8:] not in record.getMessage()
    assert key.text.removeprefix("sk-").partition("-")[2] not in record.getMessage()
    assert key.public_id in record.getMessage()


def test_logs_never_hold_a_secret_in_a_traceback() -> None:
    key = make_key()
    try:
        raise ValueError(key.text)
    except ValueError as error:
        exc_info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), exc_info)
    HideSecrets().filter(record)
    assert key.text[-20:] not in logging.Formatter().format(record)


async def test_a_database_that_takes_no_rows_keeps_no_key_from_being_found(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(used: dict[int, datetime]) -> None:
        tried.append(used)
        raise DatabaseError("read only")

    monkeypatch.setattr("controlplane.tenants.key_cache.keys_note_used", fail)
    for _ in range(3):
        assert await database.cache.find(database.key.text)
        database.now_s += FRESH_S + 0.01
    # The time of its use is written with a later look at the database.
    await until(lambda: bool(tried))
