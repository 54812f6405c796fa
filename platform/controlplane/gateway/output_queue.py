"""The outputs of one request between the front end and the answer, one item an engine step.

It stands for vLLM's RequestOutputCollector, which merges outputs when the consumer is slower than
the engine. Merged outputs depend on timing; chunks that do not can be numbered, and a replay of the
log on another web process gives the same numbers. The token reader keeps the queue bounded.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class OutputQueue:
    """Of one request with all its choices. `put` has vLLM's signature."""

    def __init__(self, request_id: str, on_taken: Callable[[], None]) -> None:
        self.request_id = request_id
        self._on_taken = on_taken
        self._items: deque[Any] = deque()
        self._ready = asyncio.Event()

    def unread(self) -> int:
        """Returns how many outputs wait."""
        return len(self._items)

    def put(self, output: Any) -> None:
        """Adds an output; an exception is raised to the consumer after what came before it."""
        self._items.append(output)
        self._ready.set()

    async def get(self) -> Any:
        """Returns the next output, in order. Raises: an exception that was put."""
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        output = self._items.popleft()
        self._on_taken()
        if isinstance(output, Exception):
            raise output
        return output
