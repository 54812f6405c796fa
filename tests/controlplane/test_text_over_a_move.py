"""Text does not move: what lies across a move, a character or a stop string, comes out whole."""

from typing import Any

import pytest

from tests.controlplane.fakes import until
from tests.controlplane.test_moving_answers import BODY, know_two, speak_and_move
from tests.controlplane.web_process import MESSAGES, Make, text_of, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SPLIT = "Grüße 👩‍🚀 aus 東京!"
"""Several of its characters take several tokens each."""
STOPPED = "The ferry leaves at noon from the old pier, not before."
STOP = "from the old pier"


async def test_characters_of_several_tokens_survive_a_move_at_every_place(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        know_two(w)
        tokens = tokens_of(w, SPLIT)
        assert len(tokens) > len(SPLIT), "some characters are split over tokens"
        for moves_at in range(1, len(tokens)):
            count = len(w.gate.requests)
            asked = w.ask("POST", "/v1/chat/completions", BODY, authorization=auth)
            await until(lambda n=count: len(w.gate.requests) > n)
            speak_and_move(store, w.engine_ids[-1], tokens, moves_at)
            events = await asked.events()
            assert text_of(events) == SPLIT, f"moved after token {moves_at}"
            assert "\ufffd" not in "".join(events)


async def test_a_stop_string_is_found_wherever_the_move_cuts_it(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        know_two(w)
        tokens = tokens_of(w, STOPPED)
        for moves_at in range(1, len(tokens)):
            count = len(w.gate.requests)
            body = {"messages": MESSAGES, "stop": [STOP]}
            asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
            await until(lambda n=count: len(w.gate.requests) > n)
            speak_and_move(store, w.engine_ids[-1], tokens, moves_at)
            (choice,) = (await asked.json())["choices"]
            said = choice["message"]["content"]
            assert said == STOPPED.partition(STOP)[0], f"moved after token {moves_at}"
            assert choice["finish_reason"] == "stop"
