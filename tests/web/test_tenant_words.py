"""Limits, budgets, keys and previews in words: pure."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.fleet.tiles import DASH
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import Limits
from controlplane.usage.limits_preview import LimitPreview
from controlplane.usage.sums import GroupBy, SloState, UsageSum
from engine_pool.types import PriorityClass
from web.tenant_preview import changes_of, rows_of, verdict_of
from web.tenant_usage import chart_data, in_steps, total_of
from web.tenant_words import Meter, attainment_of, attainment_tile, budget_tile, key_state, runs_out

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def budget(used: str, limit: str) -> Meter:
    return Meter("budget", Decimal(used), Decimal(0), Decimal(limit))


@pytest.mark.parametrize(
    ("left", "a_day", "words"),
    [
        pytest.param("0", "5", "used up: requests", id="used-up"),
        pytest.param("10", "0", "nothing was spent", id="idle"),
        pytest.param("10", "5", "used up on 22 Nov", id="two-days"),
        pytest.param("100", "5", "lasts the month", id="lasts"),
        pytest.param("1", "0.00000001", "lasts the month", id="for-ever"),
    ],
)
def test_a_budget_says_when_it_runs_out(left: str, a_day: str, words: str) -> None:
    assert runs_out(Decimal(left), Decimal(a_day), NOW).startswith(words)


@pytest.mark.parametrize(
    ("meter", "words", "tone"),
    [
        pytest.param(Meter("tokens", 10, 5, 100), "15 of 100", "", id="room"),
        pytest.param(Meter("tokens", 70, 15, 100), "85 of 100", "warn", id="near"),
        pytest.param(Meter("tokens", 90, 20, 100), "110 of 100", "bad", id="over"),
        pytest.param(Meter("tokens", 7, 0, None), "7, no limit", "", id="none"),
        pytest.param(Meter("tokens", None, None, 100), f"{DASH} of 100", "", id="unknown"),
        pytest.param(budget("9.3", "10"), "9.30 of 10.00", "warn", id="budget"),
        pytest.param(budget("0", "0"), "0 of 0", "bad", id="zero"),
    ],
)
def test_a_meter_says_how_near_the_limit_is(meter: Meter, words: str, tone: str) -> None:
    assert (meter.words, meter.tone) == (words, tone)


@given(used=st.integers(0, 10**9), reserved=st.integers(0, 10**9), limit=st.integers(0, 10**9))
def test_a_meters_bar_stays_in_its_box(used: int, reserved: int, limit: int) -> None:
    first, second = Meter("tokens", used, reserved, limit).widths
    assert min(first, second) >= 0
    assert first + second <= 100.001


def test_a_budget_tile_never_shows_less_than_nothing() -> None:
    tile = budget_tile(Meter("budget", Decimal(12), Decimal(0), Decimal(10)), Decimal(1), NOW, "")
    assert (tile.value, tile.tone) == ("0", "bad")


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        pytest.param({}, "live", id="live"),
        pytest.param({"expires_at": NOW + timedelta(days=1)}, "live", id="live-until"),
        pytest.param({"expires_at": NOW}, "expired", id="expired"),
        pytest.param({"old_until": NOW + timedelta(hours=1)}, "rotating", id="rotating"),
        pytest.param({"old_until": NOW}, "live", id="rotated"),
        pytest.param({"revoked_at": NOW, "expires_at": NOW}, "revoked", id="revoked"),
    ],
)
def test_a_key_is_in_one_state(fields: dict[str, datetime], state: str) -> None:
    assert key_state(ApiKey(name="k", **fields), NOW)[0] == state


SLO = SloState(1, "acme", PriorityClass.NORMAL)


def state(met: int, requests: int, objective: float = 0.99) -> SloState:
    share = met / requests if requests >= 30 else None
    return replace(SLO, objective=objective, requests=requests, met=met, attainment=share)


@pytest.mark.parametrize(
    ("states", "value", "tone"),
    [
        pytest.param([], DASH, "", id="no-target"),
        pytest.param([state(5, 5)], DASH, "", id="too-few"),
        pytest.param([state(100, 100)], "100", "", id="kept"),
        pytest.param([state(95, 100)], "95", "bad", id="missed"),
        pytest.param([state(1000, 1000), state(90, 100)], "99.09", "bad", id="one-class-missed"),
    ],
)
def test_an_attainment_is_coloured_against_its_objective(
    states: list[SloState], value: str, tone: str
) -> None:
    tile = attainment_tile(states, "")
    assert (tile.value, tile.tone) == (value, tone)
    assert attainment_of(states)[1] == sum(s.requests for s in states)


PREVIEW = LimitPreview(requests=100, since=NOW, is_cut=False)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        pytest.param(replace(PREVIEW, requests=0), "No request came", id="none"),
        pytest.param(PREVIEW, "No limit is set: all 100 requests pass.", id="no-limit"),
        pytest.param(replace(PREVIEW, concurrency=0), "All 100 requests", id="all"),
        pytest.param(replace(PREVIEW, concurrency=7), "7 of 100 requests", id="one-limit"),
        pytest.param(
            replace(PREVIEW, concurrency=7, tokens_per_minute=9), "At least 9 of 100", id="two"
        ),
    ],
)
def test_a_preview_says_what_would_have_been_refused(found: LimitPreview, verdict: str) -> None:
    assert verdict_of(found).startswith(verdict)


def test_a_preview_lists_each_limit_and_what_changes() -> None:
    rows = rows_of(replace(PREVIEW, concurrency=7), Limits(concurrency=3))
    assert [(row.limit, row.refused) for row in rows][2] == ("3", "7")
    before, after = Tenant(name="A"), Tenant(name="A", allowed_models=["m"], weight=2.0)
    assert changes_of(before, after) == [("Weight", "1", "2"), ("Models", "all", "m")]


@pytest.mark.parametrize(
    ("step", "days", "bars"),
    [
        pytest.param("hour", 1, 25, id="hours"),
        pytest.param("day", 30, 31, id="days"),
        pytest.param("month", 365, 13, id="months"),
    ],
)
def test_every_step_of_a_range_has_a_bar(step: GroupBy, days: int, bars: int) -> None:
    row = UsageSum(group="x", at=NOW.replace(day=1, hour=0), prompt_tokens=9, cached_tokens=4,
                   output_tokens=2, cost=Decimal("0.5"), requests=1)  # fmt: skip
    found = in_steps([row], NOW - timedelta(days=days), NOW + timedelta(minutes=1), step)
    assert len(found) == bars
    total = total_of(found)
    assert total.requests == (0 if step == "hour" else 1)
    data = chart_data([row], step)
    assert (data["prompt"], data["cached"], data["output"]) == ([5], [4], [2])
