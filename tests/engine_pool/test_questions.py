"""Questions to parts that hang: bounded in time, and one thread at most."""

import asyncio
import threading

from engine_pool.questions import Question


async def test_an_answer_is_an_answer() -> None:
    assert await Question("q", lambda: True, 60).answered()
    assert not await Question("q", lambda: False, 60).answered()


async def test_whatever_is_raised_is_no_answer() -> None:
    def fail() -> bool:
        raise RuntimeError("away")

    assert not await Question("q", fail, 60).answered()


async def test_a_part_that_hangs_is_asked_once() -> None:
    asked, goes_on = [], threading.Event()

    def hang() -> bool:
        asked.append(threading.current_thread())
        return goes_on.wait(60)

    question = Question("q", hang, 0.01)
    answers = await asyncio.gather(*(question.answered() for _ in range(5)))
    assert answers == [False] * 5
    assert not await question.answered()
    assert len(asked) == 1
    assert asked[0].daemon, "it does not hold up the process's end"
    goes_on.set()
    asked[0].join(60)
    # It is asked anew once it has answered.
    question._timeout_s = 60
    assert await question.answered()
    assert len(asked) == 2
