"""Admission's pure part: estimates, limits as numbers, what clients are told."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.admission.estimate import UNSAID_OUTPUT_TOKENS, estimate_of
from controlplane.admission.verdict import (
    LimitName,
    PoolLimits,
    cost_units,
    duration_text,
    from_units,
    limit_args,
    never_fits,
    read_verdict,
    refusal_text,
)
from controlplane.tenants.selectors import NO_LIMITS, Limits

TALK = [{"role": "user", "content": "x" * 400}]


@pytest.mark.parametrize(
    ("body", "choices", "prompt", "output"),
    [
        pytest.param({"messages": TALK, "max_tokens": 7}, 1, 108, 7, id="a chat"),
        pytest.param({"messages": TALK, "max_completion_tokens": 7}, 3, 108, 21, id="n"),
        pytest.param({"messages": TALK}, 1, 108, UNSAID_OUTPUT_TOKENS, id="no maximum"),
        pytest.param({"messages": TALK, "max_tokens": None}, 1, 108, 512, id="null is none"),
        pytest.param({"prompt": "y" * 40, "max_tokens": 5}, 1, 10, 5, id="a text"),
        pytest.param({"prompt": ["y" * 40, "z" * 8], "max_tokens": 5}, 2, 12, 20, id="texts"),
        pytest.param({"prompt": [5, 6, 7], "max_tokens": 5}, 1, 3, 5, id="token ids"),
        pytest.param({"prompt": [[5, 6], [7]], "max_tokens": 5}, 1, 3, 10, id="lists of ids"),
        pytest.param(
            {"prompt": "世界" * 20, "max_tokens": 1}, 1, 30, 1, id="bytes, not characters"
        ),
        pytest.param({"messages": TALK, "max_tokens": 10**9}, 1, 108, 1940, id="context"),
        pytest.param({"messages": "wrong", "max_tokens": "x"}, 1, 2, 512, id="nonsense"),
    ],
)
def test_a_body_is_estimated_by_its_text(
    body: dict[str, object], choices: int, prompt: int, output: int
) -> None:
    found = estimate_of(body, choices=choices, context_tokens=2048)
    assert (found.prompt_tokens, found.output_tokens) == (prompt, output)


TEXT = st.text("ab世🎉", max_size=6)
JSON = st.recursive(
    st.sampled_from([None, True, -1, 0, 7, 0.5, 10**12]) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=6,
)


@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "prompt", "max_tokens", "max_completion_tokens", "tools"]),
        JSON,
    ),
    choices=st.integers(1, 20),
    context=st.none() | st.integers(1, 10_000),
)
def test_any_body_has_an_estimate_of_at_least_a_token_each(
    body: dict[str, object], choices: int, context: int | None
) -> None:
    found = estimate_of(body, choices=choices, context_tokens=context)
    assert found.prompt_tokens >= 1
    assert found.output_tokens >= choices


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        pytest.param(-5, "0ms", id="over"),
        pytest.param(999, "999ms", id="ms"),
        pytest.param(1500, "1.5s", id="seconds"),
        pytest.param(60_000, "1m0s", id="a minute"),
        pytest.param(61_999, "1m1s", id="more"),
    ],
)
def test_times_in_headers_are_written_as_openai_does(ms: int, text: str) -> None:
    assert duration_text(ms) == text


@given(st.decimals(min_value=0, max_value=10**9, places=8))
def test_an_amount_survives_the_stores_units(cost: Decimal) -> None:
    assert from_units(cost_units(cost)) == cost


def test_headers_tell_of_limits_that_are_set_alone() -> None:
    verdict = read_verdict([0, 0, 3, 120, 1, 30_000, 0], Limits(tokens_per_minute=100))
    assert verdict.standing.headers == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "0ms",
    }


@pytest.mark.parametrize("name", list(LimitName))
def test_each_refusal_names_its_limit_and_no_pools_number(name: LimitName) -> None:
    text = refusal_text(name, Limits(1, 2, 3, Decimal(4)), 99)
    assert name.value in text
    assert "{" not in text
    if name.value.startswith("pool"):
        assert not any(c.isdigit() for c in text)


def test_limits_keep_their_order_for_the_script() -> None:
    args = limit_args(Limits(1, 2, 3, Decimal("0.00000004")), PoolLimits(5, None, 7))
    assert args == [1, 2, 3, 4, 5, -1, 7]
    assert [read_verdict([i, 0, 0, 0, 0, 0, 0], NO_LIMITS).refused_by for i in range(8)] == [
        None,
        *LimitName,
    ]


@pytest.mark.parametrize(
    ("tokens", "limits", "pool", "most"),
    [
        pytest.param(10, NO_LIMITS, PoolLimits(), None, id="no limit"),
        pytest.param(10, Limits(tokens_per_minute=10), PoolLimits(), None, id="just fits"),
        pytest.param(11, Limits(tokens_per_minute=10), PoolLimits(), 10, id="tenant's"),
        pytest.param(11, Limits(tokens_per_minute=20), PoolLimits(None, 10), 10, id="pool's"),
    ],
)
def test_a_request_above_a_whole_minute_never_fits(
    tokens: int, limits: Limits, pool: PoolLimits, most: int | None
) -> None:
    assert never_fits(tokens, limits, pool) == most
