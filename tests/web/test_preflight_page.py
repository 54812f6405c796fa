"""The pre-flight's page: the verdict first, what was measured, and how to measure anew."""

import re
import time
from dataclasses import replace

import pytest
from django.test import Client

from controlplane.fleet.preflight_values import (
    Applies,
    Forecast,
    Obstacle,
    Pair,
    PairWay,
    PreflightReport,
)
from tests.web.conftest import FakeWatch
from tests.web.reading import page, text_of
from web import preflight_words
from web.views import preflight as preflight_page

MEASURED = PreflightReport(
    at_unix_s=0.0,
    ok=True,
    verdict="Moves work here: a reader waits about 9-11 ms, at every length.",
    serving=("i-01", "i-02", "i-03"),
    token_bytes=131_072,
    block_bytes=2_097_152,
    block_size_tokens=16,
    ways=(
        PairWay("i-01", "i-02", 1.41e9, 0.4),
        PairWay("i-02", "i-01", 0.5e9, 0.4),
        PairWay("i-01", "i-03", None, None, "i-03 did not answer"),
    ),
    left_out=(Pair("i-02", "i-03"),),
    slowest=Pair("i-02", "i-01"),
    step_ms=21.0,
    is_step_assumed=False,
    forecasts=(Forecast(512, 2, (32,), 1, 90.0, 9.0, 69_206_016),),
    self_test=None,
    obstacles=(
        Obstacle("Requests with a LoRA adapter", "It may not be there.", Applies.PER_REQUEST),
        Obstacle("Switched off", "FERRY_MIGRATION is off.", Applies.NO),
    ),
)


def test_without_a_preflight_the_page_says_how_to_make_one(
    watch: FakeWatch, operators_client: Client
) -> None:
    text = text_of(page(operators_client, "/migrations/preflight/"))
    assert "Nobody has measured it" in text
    assert "Measure now" in text


def test_the_preflight_has_the_verdict_first(
    watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(MEASURED, at_unix_s=time.time() - 40)
    monkeypatch.setattr(preflight_page, "preflight_get", lambda: report)
    html = page(operators_client, "/migrations/preflight/")
    text = text_of(html)
    title = re.search(r"<h1>.*?</h1>", html, re.S)
    assert title is not None
    assert "Moves work here" in title[0]
    assert re.search(r"Measured 4\d s ago", text)
    for words in ("131 kB", "2.1 MB 16 tokens", "1.41", "512 1 + 1 69.2 90 ms 9 ms", "not here"):
        assert words in text, words
    assert "the pool has not made one" in text


def test_the_matrix_tells_slow_failed_and_unmeasured_ways_apart() -> None:
    rows = dict(preflight_words.matrix(MEASURED))
    assert [c.tone for c in rows["i-01"]] == ["same", "fast", "bad"]
    assert [c.tone for c in rows["i-02"]] == ["slow", "same", "none"]
    assert "did not answer" in rows["i-01"][2].title


def test_the_dialog_predicts_by_the_next_longer_forecast() -> None:
    words = preflight_words.forecast_for(MEASURED.forecasts, 400)
    assert words == "at most 90 ms to copy, 9 ms to wait (for 512 tokens)"
    assert preflight_words.forecast_for(MEASURED.forecasts, 600) == ""


def test_measuring_anew_comes_back_to_the_page(
    watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(preflight_page, "preflight_measure", asked.append)
    answer = operators_client.post("/migrations/preflight/", {"lengths": "128, 1024"})
    assert (answer.status_code, asked) == (303, [[128, 1024]])
    wrong = operators_client.post("/migrations/preflight/", {"lengths": "ten"})
    assert wrong.status_code == 400
    assert "expected up to 8 whole numbers" in wrong.content.decode()
    assert 'value="ten"' in wrong.content.decode()
