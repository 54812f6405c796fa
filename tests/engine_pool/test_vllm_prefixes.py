"""What the prefix map says of a real engine, against what the engine says of itself."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from engine_pool.prefix_map import PrefixMap, prefix_hashes
from engine_pool.types import InstanceName
from tests.engine_pool.vllm_pair import make_engine, prompt_of, wish

if TYPE_CHECKING:
    from engine_pool.vllm_adapter import VllmEngine

pytestmark = pytest.mark.slow

NAME = InstanceName("i-01")
STEPS_MAX = 10_000


@pytest.fixture(scope="module")
def engine() -> Iterator["VllmEngine"]:
    one = make_engine(NAME)
    yield one
    one.close()


class Rig:
    """One engine and a map that hears of all that it computes."""

    def __init__(self, engine: "VllmEngine") -> None:
        self._engine = engine
        self.block_tokens = engine.load().block_size_tokens
        self._map = PrefixMap()
        self._map.begin(NAME, "a", engine.load().capacity_tokens)

    def ask(self, prompt: Sequence[int], **sampling: object) -> tuple[int, int]:
        """Computes a prompt. Returns its tokens in the cache as the map said before, in whole
        blocks, and as the engine says."""
        hashes = prefix_hashes(prompt, key=b"key")
        thought = self._map.holders(hashes, len(prompt) - 1).get(NAME, 0)
        thought = thought // self.block_tokens * self.block_tokens
        claim = self._map.claim(NAME, hashes, thought)
        self._map.note(NAME, hashes)
        found = self._cached(prompt, sampling)
        if claim is not None:
            self._map.correct(claim, found)
        return thought, found

    def _cached(self, prompt: Sequence[int], sampling: dict[str, object]) -> int:
        self._engine.add(wish(prompt, **{"max_tokens": 2} | sampling))
        first: int | None = None
        for _ in range(STEPS_MAX):
            if not self._engine.has_work():
                assert first is not None
                return first
            for output in self._engine.step():
                first = output.cached_tokens if first is None else first
        raise AssertionError("the engine does not come to an end")


@pytest.fixture
def rig(engine: "VllmEngine") -> Rig:
    return Rig(engine)


def test_the_map_says_what_the_engine_has(rig: Rig) -> None:
    size = rig.block_tokens
    shared = prompt_of(8 * size, seed=11)
    assert rig.ask(shared) == (0, 0)
    assert rig.ask([*shared, *prompt_of(40, seed=12)]) == (8 * size, 8 * size)
    # The last token is always computed, and with it its block.
    assert rig.ask(shared) == (7 * size, 7 * size)
    assert rig.ask([*shared[: 4 * size], *prompt_of(300, seed=13)]) == (4 * size, 4 * size)
    assert rig.ask([7, *shared]) == (0, 0)


def test_a_prompt_that_the_engine_has_evicted_is_forgotten(rig: Rig) -> None:
    size = rig.block_tokens
    first = prompt_of(8 * size, seed=21)
    rig.ask(first)
    for seed in range(22, 30):
        rig.ask(prompt_of(8 * size, seed=seed))
    thought, found = rig.ask([*first, 5])
    assert (thought, found) == (0, 0)


def test_what_was_thought_too_much_is_corrected(rig: Rig) -> None:
    size = rig.block_tokens
    first = prompt_of(8 * size, seed=31)
    rig.ask(first)
    # Outputs take room in the cache, too, and the map does not hear of them.
    for seed in range(32, 36):
        rig.ask(prompt_of(size // 2, seed=seed), max_tokens=12 * size)
    thought, found = rig.ask([*first, 5])
    assert thought == 8 * size
    assert found < thought
    assert rig.ask([*first, 6]) == (8 * size, 8 * size)
