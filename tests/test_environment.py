"""The tests' process has settings of its own, and the database that was asked for."""

import os
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from tests.environment import VAR_DIR


def test_settings_are_those_of_the_tests_and_not_of_the_checkout() -> None:
    assert settings.VAR_DIR == VAR_DIR
    assert Path(settings.BASE_DIR) not in VAR_DIR.parents


@pytest.mark.django_db
def test_the_database_is_on_the_server_that_was_given_or_in_a_file() -> None:
    expected = "postgresql" if "FERRY_TEST_DATABASE_URL" in os.environ else "sqlite"
    assert connection.vendor == expected
    if expected == "sqlite":
        assert Path(connection.settings_dict["NAME"]).is_relative_to(VAR_DIR)
