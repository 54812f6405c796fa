"""The browser modules: tested without a browser, and compared with the Python they mirror."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.fleet import tiles
from controlplane.fleet.picture import BAND_STEPS, SHORT_BELOW_STEPS
from engine_pool.types import InstanceState
from web import drawing, messages
from web.templatetags import ferry

JS = Path(__file__).parent / "js"
NODE = shutil.which("node") or "node"
"""`make test` installs it; without it these tests fail."""
NODE_TIMEOUT_S = 60

CASES: dict[str, list[Any]] = {
    "bars": [
        [[59, 382, 118, 882, 0, 0, 0], "serving"],
        [[0, 300, 0, 0, 0, 0, 0], "serving"],
        [[0, 500, 100, 0, 0, 0, 470], "no_progress"],
        [[0, 300, 100, 0, 0, 0, 0], "draining"],
        [[0, 0, 0, 0, 0, 0, 0], "draining"],
        [[], "starting"],
        [[], "lost"],
    ],
    "freeness": [None, "idle", "draining", -9000, -40.8, -0.04, 0, 47.9, 100, 204.4, 1500, 99999],
    "sparks": [[], [1], [1, 2, 3], [5, None, 7, 7, None, 1], [2, 2, 2], [None] * 40],
    "numbers": [None, 0, 1, 0.1234, 9.99, 18.24, 99.96, 100, 4812.4, 1234567, -25, -3.5],
    "ages": [None, 0, 0.44, 9.96, 36.2, 119, 200, 7100, 90000],
    "names": ["i-01", "x" * 18, "x" * 19, "a-very-long-name-of-an-instance-on-gpu-07-part-3-of-12"],
    "states": [*(s.value for s in InstanceState), "no_progress"],
}


def test_the_pure_modules_pass_their_own_tests() -> None:
    done = subprocess.run(
        [NODE, "--test", *map(str, sorted(JS.glob("*.test.js")))],
        capture_output=True,
        text=True,
        timeout=NODE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.fixture(scope="module")
def mirrored() -> Any:
    done = subprocess.run(
        [NODE, str(JS / "dump.js"), json.dumps(CASES)],
        capture_output=True,
        text=True,
        timeout=NODE_TIMEOUT_S,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_messages_are_the_same_on_both_sides(mirrored: Any) -> None:
    there = mirrored["messages"]
    assert there["FIELDS"] == {kind: list(fields) for kind, fields in messages.FIELDS.items()}
    for name in ("PATH", "SUBSCRIBE", "SNAPSHOT", "DELTA", "TICK", "ERROR"):
        assert there[name] == getattr(messages, name), name
    for name in ("CLOSE_GOING_AWAY", "CLOSE_NOT_ALLOWED"):
        assert there[name] == getattr(messages, name), name


def test_drawings_are_the_same_on_both_sides(mirrored: Any) -> None:
    bars = [[list(r) for r in drawing.bar_rects(bar, state)] for bar, state in CASES["bars"]]
    assert mirrored["bars"] == bars
    gauges = [[drawing.gauge_percent(v), drawing.gauge_tone(v)] for v in CASES["freeness"]]
    assert mirrored["gauges"] == gauges
    assert mirrored["sparks"] == [drawing.spark_path(values) for values in CASES["sparks"]]
    assert mirrored["fills"] == drawing.FILLS
    assert mirrored["thresholds"] == [SHORT_BELOW_STEPS, *BAND_STEPS]


def test_words_are_the_same_on_both_sides(mirrored: Any) -> None:
    assert mirrored["freeness"] == [ferry.freeness(value) for value in CASES["freeness"]]
    assert mirrored["numbers"] == [tiles.number(value) for value in CASES["numbers"]]
    ages = [ferry.age(None if a is None else 1e6 - a, 1e6) for a in CASES["ages"]]
    assert mirrored["ages"] == ages
    assert mirrored["names"] == [ferry.short_name(name) for name in CASES["names"]]
    assert mirrored["states"] == [ferry.state_word(state) for state in CASES["states"]]
