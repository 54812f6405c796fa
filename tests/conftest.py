"""What every test gets: a settings environment of its own, away from the checkout's var/, and the
choice of the tests that use the database."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from django.test import override_settings

# Before Django reads its settings: no test may write into the folder of a real installation.
VAR_DIR = tempfile.mkdtemp(prefix="ferry-test-")
atexit.register(shutil.rmtree, VAR_DIR, ignore_errors=True)
os.environ["FERRY_VAR_DIR"] = VAR_DIR

# What the person's shell says about a running installation is none of the tests' business.
for name in ("REDIS_URL", "RAY_ADDRESS", "DATABASE_URL"):
    os.environ.pop(name, None)
# A server on which tests may make databases of their own (ops/test.py starts one).
if "FERRY_TEST_DATABASE_URL" in os.environ:
    os.environ["DATABASE_URL"] = os.environ["FERRY_TEST_DATABASE_URL"]

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
