"""Engines that belong to nobody: found in two looks, ended only where they are this
installation's."""

from dataclasses import replace

import pytest

from engine_pool.errors import EngineFailed
from engine_pool.orphans import Orphans
from engine_pool.ports import Pong
from tests.engine_pool.keeper_scene import pong


class FakeEngine:
    def __init__(self, answer: Pong | None) -> None:
        self.answer = answer
        self.is_stopped = False

    async def ping(self, timeout_s: float) -> Pong:
        if self.answer is None:
            raise EngineFailed("no answer")
        return self.answer

    async def stop(self, timeout_s: float) -> None:
        self.is_stopped = True


MINE, SILENT = replace(pong(), installation="here"), None
NOBODY = "nobody keeps it"
FOREIGN = replace(pong(), installation="elsewhere")


@pytest.mark.parametrize(
    ("actor", "answer", "why"),
    [
        pytest.param("engine:a:a-01:1", MINE, NOBODY, id="a duplicate"),
        pytest.param(
            "engine:a:a-01:1", SILENT, "it does not answer and nobody keeps it", id="hung"
        ),
        pytest.param("engine:gone:g-01:1", MINE, "there is no pool gone", id="of a removed pool"),
        pytest.param("engine:gone:g-01:1", SILENT, "", id="of whom, nobody knows"),
        pytest.param("engine:gone:g-01:1", FOREIGN, "", id="another installation's"),
        pytest.param("engine:a:a-01:1", FOREIGN, "", id="another's, of the same name"),
        pytest.param("engine:resting:r-01:1", MINE, "", id="of a pool that cannot run now"),
        pytest.param("engine:a:a-01:kept", MINE, "", id="somebody keeps it"),
    ],
)
async def test_who_is_ended(actor: str, answer: Pong | None, why: str) -> None:
    engine, told = FakeEngine(answer), []
    orphans = Orphans(
        "here",
        lambda: {actor: engine},
        owned=lambda: {"engine:a:a-01:kept"},
        running_pools=lambda: {"a"},
        resting_pools=lambda: {"resting"},
        tell=lambda name, reason: told.append((name, reason)),
    )
    await orphans.look()
    assert not engine.is_stopped, "it may be starting"
    await orphans.look()
    assert engine.is_stopped is bool(why)
    assert told == ([(actor, why)] if why else [])
