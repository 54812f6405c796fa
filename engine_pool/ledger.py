"""The in-flight ledger: requests that were sent to an instance whose reports do not show them yet.

Without it a stale report makes a herd. Entries are looked up by request and by instance, and go by
themselves after `LEDGER_LIFE_S`. Who listens hears of each one that comes and goes.
"""

import heapq
from collections.abc import Callable, Iterable, Set
from typing import Final

from engine_pool.types import InFlight, InstanceName, RequestId

LEDGER_LIFE_S: Final = 2.0
"""A request that no report shows by then is lost or over: twenty times the report interval."""

EntryListener = Callable[[InFlight], None]


class Ledger:
    """Of one web process. Listeners must neither block nor raise, nor change the ledger."""

    def __init__(self) -> None:
        self._entries: dict[RequestId, InFlight] = {}
        self._by_instance: dict[InstanceName, dict[RequestId, InFlight]] = {}
        self._by_age: list[tuple[float, RequestId]] = []
        """A heap; entries that went before their time are passed over when they come up."""
        self._on_enter: list[EntryListener] = []
        self._on_leave: list[EntryListener] = []

    def add_listener(self, on_enter: EntryListener, on_leave: EntryListener) -> None:
        """Calls the one with each entry that comes, the other with each that has gone."""
        self._on_enter.append(on_enter)
        self._on_leave.append(on_leave)

    def entries(self) -> tuple[InFlight, ...]:
        return tuple(self._entries.values())

    def get(self, request_id: RequestId) -> InFlight | None:
        return self._entries.get(request_id)

    def sent_to(self, instance: InstanceName) -> Iterable[InFlight]:
        """Returns what was sent to an instance; valid until the next change."""
        return self._by_instance.get(instance, {}).values()

    def enter(self, entry: InFlight) -> None:
        """Adds an entry; it replaces the one that the request had. The same one again is no
        news."""
        if self._entries.get(entry.request_id) == entry:
            return
        self.drop(entry.request_id)
        self._entries[entry.request_id] = entry
        self._by_instance.setdefault(entry.instance, {})[entry.request_id] = entry
        heapq.heappush(self._by_age, (entry.sent_unix_s, entry.request_id))
        for listener in self._on_enter:
            listener(entry)

    def drop(self, request_id: RequestId) -> None:
        """Removes a request's entry, if there is one."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        there = self._by_instance[entry.instance]
        del there[request_id]
        if not there:
            del self._by_instance[entry.instance]
        for listener in self._on_leave:
            listener(entry)

    def drop_shown(self, shown: Set[RequestId]) -> None:
        """Removes what a report shows, wherever it was sent to."""
        for request_id in shown & self._entries.keys():
            self.drop(request_id)

    def drop_instance(self, instance: InstanceName) -> None:
        """Removes all that was sent to an instance."""
        for request_id in list(self._by_instance.get(instance, ())):
            self.drop(request_id)

    def expire(self, now_unix_s: float) -> None:
        """Removes what is too old."""
        too_old_unix_s = now_unix_s - LEDGER_LIFE_S
        while self._by_age and self._by_age[0][0] < too_old_unix_s:
            sent_unix_s, request_id = heapq.heappop(self._by_age)
            entry = self._entries.get(request_id)
            if entry is not None and entry.sent_unix_s == sent_unix_s:
                self.drop(request_id)
