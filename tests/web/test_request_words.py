"""One request in words and lanes, and how the ledger's pages write durations and shares."""

import pytest

from controlplane.fleet.tiles import DASH
from controlplane.tenants.models import Tenant
from tests.web.ledger_rows import record
from web import request_lanes, request_words
from web.ledger_words import lasts, percent
from web.move_units import MINUS


def test_visits_and_pauses_follow_one_another() -> None:
    row = record(Tenant(pk=1), save=False)
    stops = [
        request_lanes.Pause(1000.0, 9.0, "i-01", "i-02", "a"),
        request_lanes.Pause(3000.0, 20.0, "i-02", "i-01", "b"),
    ]
    found = request_lanes.visits(row, stops)
    assert [v.instance for v in found] == ["i-01", "i-02", "i-01"]
    assert [(v.start_ms, v.end_ms) for v in found] == [
        (500.0, 1000.0), (1009.0, 3000.0), (3020.0, 6098.0),
    ]  # fmt: skip


REPLAY = {
    "from": "i-01", "to": "i-02", "at_token": 40, "gap_ms": 400.0, "at_ms": 2400.0,
    "reason": "The instance i-01 died (exit code -9).", "replays": 1,
}  # fmt: skip


def test_a_replay_breaks_the_timeline_and_stands_in_the_log() -> None:
    unseen = {**REPLAY, "gap_ms": None, "at_ms": None, "from": "i-02", "to": "i-03"}
    row = record(
        Tenant(pk=1), save=False, migrations=0, replays=2, replay_notes=[REPLAY, unseen],
        instances=["i-01", "i-02", "i-03"], migration_ms=400.0,
    )  # fmt: skip
    plot = request_lanes.timeline(row, [])
    assert [lane.name for lane in plot.lanes[2:]] == ["Decode i-01", "Decode i-02", "Pauses"]
    stops = request_lanes.pauses(row, [])
    assert [(s.at_ms, s.lasts_ms, s.source, s.destination) for s in stops] == [
        (2000.0, 400.0, "i-01", "i-02")
    ]
    told = [m for m in request_words.moments(row, []) if m.what.startswith("Replayed")]
    assert [m.what for m in told] == [
        "Replayed i-02 → i-03, after token 40",
        "Replayed i-01 → i-02, after token 40",
    ]
    assert "exit code -9" in told[1].detail
    assert "replayed 2 times" in request_words.sentence(row)


def test_bars_stay_on_the_axis() -> None:
    row = record(Tenant(pk=1), save=False)
    plot = request_lanes.timeline(row, [])
    assert [lane.name for lane in plot.lanes] == ["Queued", "Prefill", "Decode i-01"]
    assert all(0 <= bar.x <= 100 for lane in plot.lanes for bar in lane.bars)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param(
            {"migrations": 0, "instances": ["i-01"]},
            "Finished: 231 tokens in 6.1 s, 1 instance, never moved.",
            id="never-moved",
        ),
        pytest.param(
            {"status": "cancelled"},
            "Cancelled by its client after 6.1 s: 231 tokens produced by then count.",
            id="cancelled",
        ),
        pytest.param(
            {"status": "detached"},
            "Its client left after 6.1 s; its engine went on to the end: 231 tokens produced by"
            " then count.",
            id="detached",
        ),
        pytest.param(
            {"status": "failed", "error_code": "instance_lost", "output_tokens": 0},
            "Failed after 6.1 s: instance lost; no token produced.",
            id="failed",
        ),
    ],
)
def test_one_sentence_says_what_came_of_it(fields: dict[str, object], words: str) -> None:
    assert request_words.sentence(record(Tenant(pk=1), save=False, **fields)) == words


@pytest.mark.parametrize(
    ("value_ms", "words"),
    [(None, DASH), (0.0, "0 ms"), (0.42, "0.4 ms"), (9.0, "9 ms"), (640.4, "640 ms"),
     (999.6, "1.0 s"), (6100.0, "6.1 s"), (100_400.0, "100 s"), (125_000.0, "2 min 5 s"),
     (180_000.0, "3 min")],
)  # fmt: skip
def test_durations_are_short(value_ms: float | None, words: str) -> None:
    assert lasts(value_ms) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(None, DASH), (1.0, "100 %"), (0.9991, "99.91 %"), (0.99999, "100 %"), (0.427, "42.7 %"),
     (0.5, "50 %"), (0.50000001, "50 %"), (-0.5, f"{MINUS}50 %")],
)  # fmt: skip
def test_shares_keep_what_tells_them_from_all(share: float | None, words: str) -> None:
    assert percent(share) == words
