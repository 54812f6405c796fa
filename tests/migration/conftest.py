"""Fixtures of the tests of moves: the pool's real store."""

from tests.engine_pool.conftest import store

__all__ = ["store"]
