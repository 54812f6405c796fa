"""Keeps the map of cached prefixes: what was sent where, by anybody, and what came of it here.

A listener of the live view and its ledger. The hashes' key is the store's own name, which all web
processes know and nobody else; a store that lost its memory has another one, and what is in the map
then is never asked for again and goes in time.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from engine_pool import view
from engine_pool.live_view import DEAD_STATES, LiveView
from engine_pool.prefix_map import Claim, PrefixMap, prefix_hashes
from engine_pool.submission import Submission
from engine_pool.token_log import TokenFrame
from engine_pool.types import (
    EngineKind,
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceStatus,
    RequestId,
)
from migration.report import MoveReport, MoveState

_T = TypeVar("_T")

REQUESTS_KEPT: Final = 4096
"""Requests whose hashes are remembered in case they move, some kilobytes each; and those whose
first token is awaited."""


class Prefixes:
    """Of one web process, in its event loop."""

    def __init__(self, live: LiveView) -> None:
        self._live = live
        self._map = PrefixMap()
        self._hashes: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        """Of requests that were sent lately, oldest first."""
        self._claims: OrderedDict[str, Claim] = OrderedDict()
        """Of own requests whose first token is awaited, oldest first."""
        live.add_listener(self._on_change)
        live.ledger.add_listener(self._on_sent, lambda entry: None)

    def hashes_of(self, submission: Submission) -> tuple[int, ...]:
        """Returns the hashes of a prompt's beginnings; none where no engine has a prefix cache."""
        key = self._live.store_incarnation
        if key is None or not self._map.instances or not submission.prompt_token_ids:
            return ()
        return prefix_hashes(
            submission.prompt_token_ids, key=key.encode(), salt=submission.cache_salt
        )

    def holders(
        self, hashes: Sequence[int], prompt_tokens: int, block_size_tokens: int
    ) -> Mapping[InstanceName, int]:
        """Returns who has how many tokens of a prompt, in whole blocks. The last token is always
        computed."""
        size = block_size_tokens
        found = self._map.holders(hashes, prompt_tokens - 1)
        return {i: tokens // size * size for i, tokens in found.items() if tokens >= size}

    def expect(
        self, request_id: str, instance: InstanceName, hashes: Sequence[int], tokens: int
    ) -> None:
        """Waits for the truth about what an instance has of a prompt. Call it before the request
        is in the ledger, which notes that the instance computes the prompt."""
        claim = self._map.claim(instance, hashes, tokens)
        if claim is not None:
            _keep(self._claims, request_id, claim)

    def withdraw(self, request_id: str, instance: InstanceName) -> None:
        """Notes that an instance did not take a request."""
        self._claims.pop(request_id, None)
        self._map.withdraw(instance, self._hashes.pop(request_id, ()))

    def note_frames(self, frames: Sequence[TokenFrame]) -> None:
        """Looks at the first tokens of own requests: what did their instance have of the
        prompt?"""
        if not self._claims:
            return
        for frame in frames:
            claim = self._claims.pop(frame.request_id, None) if frame.start == 0 else None
            # One that moved while it waited says nothing about where it was sent to.
            if claim is not None and frame.token_ids and frame.instance == claim.instance:
                self._map.correct(claim, frame.cached_tokens)

    def _on_sent(self, entry: InFlight) -> None:
        if entry.prefix:
            _keep(self._hashes, entry.request_id, entry.prefix)
            self._map.note(entry.instance, entry.prefix)

    def _on_change(self, change: view.Change) -> None:
        match change:
            case InstanceLoad():
                self._begin(change)
            case InstanceStatus() if change.state in DEAD_STATES:
                self._map.forget(change.instance)
            case MoveReport() if change.state is MoveState.COMMITTED:
                # Its blocks are there now; the source keeps them until it needs the room.
                known = self._hashes.get(RequestId(change.request_id), ())
                self._map.note(InstanceName(change.destination), known)
            case str():
                self._map.forget(InstanceName(change))

    def _begin(self, load: InstanceLoad) -> None:
        status = self._live.statuses.get(load.instance)
        # Simulated engines have no prefix cache.
        if (
            status is not None
            and status.incarnation == load.incarnation
            and status.engine is not EngineKind.SIMULATED
        ):
            self._map.begin(load.instance, load.incarnation, load.capacity_tokens)


def _keep(table: OrderedDict[str, _T], request_id: str, value: _T) -> None:
    table[request_id] = value
    table.move_to_end(request_id)
    if len(table) > REQUESTS_KEPT:
        table.popitem(last=False)
