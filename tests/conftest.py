"""What every test gets, and the choice of the tests that use the database."""

from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import override_settings

from tests.environment import VAR_DIR

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_setup"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database-only",
        action="store_true",
        help="only tests that use the database: a second run does them on PostgreSQL",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--database-only"):
        return
    others = [item for item in items if not _uses_database(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if _uses_database(item)]


def _uses_database(item: pytest.Item) -> bool:
    """Says whether the test's own process uses the database, or it asks for both by its mark.

    Not so the browser's tests: their server's queries are those of the pages' own tests.
    """
    if item.get_closest_marker("django_db") or item.get_closest_marker("both_databases"):
        return True
    return bool(DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """People's passwords are hashed at once: what makes guessing slow makes tests slow, too."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Lets the tests' SQLite database be a file, as an installation's is.

    pytest-django asks for it. In memory, two connections lock each other out at once, and for as
    long as one of them is open.
    """
    if connection.vendor == "sqlite":
        connection.settings_dict["TEST"]["NAME"] = str(VAR_DIR / "test.sqlite3")
