"""Questions to a part that may hang: asked in a thread, one at a time, with a time limit."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future


class Question:
    """A blocking question to a part of the installation: does it answer?

    A part that hangs holds the thread that asks. So there is one such thread at most, nobody waits
    for it at the process's end, and it is never one of the event loop's own few threads.
    """

    def __init__(self, name: str, ask: Callable[[], bool], timeout_s: float) -> None:
        """`ask`: returns whether the part answers; whatever it raises means that it does not."""
        self._name = name
        self._ask = ask
        self._timeout_s = timeout_s
        self._pending: Future[bool] | None = None
        self._lock = threading.Lock()

    async def answered(self) -> bool:
        """Asks, unless an earlier question is still open; says whether it was answered in time."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.done():
                pending = self._pending = Future()
                threading.Thread(
                    target=self._run, args=(pending,), name=self._name, daemon=True
                ).start()
        try:
            # Shielded: others may wait for the same answer.
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(asyncio.wrap_future(pending))
        except TimeoutError:
            return False

    def _run(self, answer: "Future[bool]") -> None:
        try:
            is_answered = self._ask()
        # Each part has its own kinds of errors, and all of them mean the same here.
        except Exception:  # noqa: BLE001
            is_answered = False
        answer.set_result(is_answered)
