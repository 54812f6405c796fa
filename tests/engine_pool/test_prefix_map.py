"""Which instances have the beginning of a prompt: hashes, forgetting, corrections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.prefix_map import MISSES_MAX, STEPS_TOKENS, PrefixMap, prefix_hashes, tokens_of
from engine_pool.types import InstanceName

KEY = b"a store's name"
A, B = InstanceName("i-01"), InstanceName("i-02")
PROMPT = list(range(1000, 1300))
"""300 tokens: beginnings of 64, 128, 192 and 256."""


def hashes(token_ids: list[int], salt: str = "") -> tuple[int, ...]:
    return prefix_hashes(token_ids, key=KEY, salt=salt)


def two(capacity_tokens: int = 10_000) -> PrefixMap:
    known = PrefixMap()
    known.begin(A, "a", capacity_tokens)
    known.begin(B, "a", capacity_tokens)
    return known


def test_prompts_share_the_hashes_of_what_they_share() -> None:
    other = [*PROMPT[:150], *range(5000, 5150)]
    assert len(hashes(PROMPT)) == 4
    assert hashes(PROMPT)[:2] == hashes(other)[:2]
    assert not set(hashes(PROMPT)[2:]) & set(hashes(other)[2:])


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(prefix_hashes(PROMPT, key=KEY, salt="mine"), id="another salt"),
        pytest.param(prefix_hashes(PROMPT, key=b"another store"), id="another key"),
        pytest.param(prefix_hashes([0, *PROMPT], key=KEY), id="shifted"),
    ],
)
def test_nothing_is_shared_with(one: tuple[int, ...]) -> None:
    assert not set(one) & set(hashes(PROMPT))


def test_a_long_prompt_is_known_by_few_hashes() -> None:
    tokens = sum(count * step for count, step in STEPS_TOKENS[:2])
    found = hashes(list(range(tokens + 4096)))
    assert len(found) == 64 + 56 + 1
    assert tokens_of(len(found)) == tokens + 4096
    assert [tokens_of(i) for i in (0, 1, 64, 65)] == [0, 64, 4096, 4608]


@given(st.lists(st.integers(0, 200_000), max_size=700))
def test_the_hashes_cover_no_more_than_the_prompt(token_ids: list[int]) -> None:
    found = hashes(token_ids)
    assert tokens_of(len(found)) <= len(token_ids) < tokens_of(len(found) + 1)
    assert len(set(found)) == len(found)


def test_who_computed_a_prompt_has_its_beginnings() -> None:
    known = two()
    known.note(A, hashes(PROMPT))
    assert known.holders(hashes(PROMPT), 299) == {A: 256}
    assert known.holders(hashes(PROMPT[:130]), 129) == {A: 128}
    known.note(B, hashes(PROMPT[:100]))
    assert known.holders(hashes(PROMPT), 299) == {A: 256, B: 64}
    assert known.holders(hashes(PROMPT, "mine"), 299) == {}


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    known = two()
    known.note(A, hashes(PROMPT[:256]))
    assert known.holders(hashes(PROMPT[:256]), 255) == {A: 255}


def test_an_instance_that_is_unknown_has_nothing() -> None:
    known = PrefixMap()
    known.note(A, hashes(PROMPT))
    assert known.holders(hashes(PROMPT), 299) == {}


def test_a_new_incarnation_has_forgotten_all() -> None:
    known = two()
    known.note(A, hashes(PROMPT))
    known.begin(A, "a", 10_000)
    assert known.holders(hashes(PROMPT), 299) == {A: 256}
    known.begin(A, "b", 10_000)
    assert known.holders(hashes(PROMPT), 299) == {}
    assert len(known) == 0


def test_beyond_its_capacity_the_least_recently_used_goes_and_ends_before_beginnings() -> None:
    known = two(capacity_tokens=256 + 128)
    other = hashes(list(range(300)))
    known.note(A, hashes(PROMPT))
    known.note(A, other)
    assert known.holders(other, 299) == {A: 256}
    assert known.holders(hashes(PROMPT), 299) == {A: 128}
    known.note(A, hashes(PROMPT[:128]))
    known.note(A, hashes(list(range(9000, 9064))))
    assert known.holders(hashes(PROMPT), 299) == {A: 128}
    assert known.holders(other, 299) == {A: 192}


def test_a_miss_takes_away_what_was_not_used_since() -> None:
    known = two()
    old, missed, newer = (hashes(list(range(n, n + 300))) for n in (1, 2000, 4000))
    known.note(A, old)
    known.note(A, missed)
    known.note(A, newer)
    claim = known.claim(A, missed, 256)
    assert claim is not None
    known.note(A, missed)
    known.correct(claim, found_tokens=64)
    assert known.holders(old, 299) == {}
    assert known.holders(newer, 299) == {A: 256}
    # It has computed that one anew by then.
    assert known.holders(missed, 299) == {A: 256}


def test_a_hit_takes_nothing_away() -> None:
    known = two()
    known.note(A, hashes(PROMPT))
    claim = known.claim(A, hashes(PROMPT), 256)
    assert claim is not None
    known.correct(claim, found_tokens=288)
    assert known.holders(hashes(PROMPT), 299) == {A: 256}


def miss(known: PrefixMap, prompt: tuple[int, ...], found_tokens: int = 0) -> None:
    known.note(A, prompt)
    claim = known.claim(A, prompt, 256)
    assert claim is not None
    known.note(A, prompt)
    known.correct(claim, found_tokens)


def test_an_engine_that_never_has_anything_is_not_asked_again() -> None:
    known = two()
    for _ in range(MISSES_MAX):
        assert known.holders(hashes(PROMPT), 299) in ({}, {A: 256})
        miss(known, hashes(PROMPT))
    assert len(known) == 0
    known.note(A, hashes(PROMPT))
    assert known.holders(hashes(PROMPT), 299) == {}
    known.begin(A, "b", 10_000)
    known.note(A, hashes(PROMPT))
    assert known.holders(hashes(PROMPT), 299) == {A: 256}


def test_an_engine_that_had_something_once_has_a_cache() -> None:
    known = two()
    miss(known, hashes(PROMPT), found_tokens=64)
    for _ in range(2 * MISSES_MAX):
        miss(known, hashes(PROMPT))
    assert known.holders(hashes(PROMPT), 299) == {A: 256}


def test_a_claim_on_a_dead_incarnation_corrects_nothing() -> None:
    known = two()
    known.note(A, hashes(PROMPT))
    claim = known.claim(A, hashes(PROMPT), 256)
    assert claim is not None
    known.begin(A, "b", 10_000)
    known.note(A, hashes(PROMPT))
    known.correct(claim, 0)
    assert known.holders(hashes(PROMPT), 299) == {A: 256}


def test_what_was_refused_is_taken_back() -> None:
    known = two()
    known.note(A, hashes(PROMPT))
    known.withdraw(A, hashes(PROMPT))
    assert known.holders(hashes(PROMPT), 299) == {}
    assert len(known) == 0


def test_a_beginning_that_all_have_is_known_of_few() -> None:
    known = PrefixMap(holders_max=3)
    names = [InstanceName(f"i-{n:02}") for n in range(6)]
    for name in names:
        known.begin(name, "a", 10_000)
        known.note(name, hashes(PROMPT))
    assert set(known.holders(hashes(PROMPT), 299)) == set(names[3:])
    assert len(known) == 3 * 4


@given(st.data())
def test_it_never_grows_beyond_its_bounds(data: st.DataObject) -> None:
    known = PrefixMap(entries_max=12, holders_max=2)
    names = [InstanceName(f"i-{n}") for n in range(3)]
    steps = data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 9)), max_size=40))
    for name, n in steps:
        known.begin(name, f"{n // 5}", 64 * (n % 5))
        known.note(name, hashes(list(range(n * 64, n * 64 + 64 * (n % 4)))))
        assert len(known) <= 12
    for name in names:
        known.forget(name)
    assert len(known) == 0
    assert known._holders == {}
