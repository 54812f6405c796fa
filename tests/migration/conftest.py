"""Fixtures of the tests of moves: the pool's real store, and two agents in one process."""

from collections.abc import Iterator

import pytest

from tests.engine_pool.conftest import store
from tests.migration.two_sides import Two

__all__ = ["store"]


@pytest.fixture
def two() -> Iterator[Two]:
    pair = Two()
    pair.start()
    yield pair
    pair.stop()
