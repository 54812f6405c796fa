"""Carries out at an engine what follows from a wish (policy/wishes.py), and shows how far it is."""

import time
from collections.abc import Callable
from typing import Final

from engine_pool.drain_progress import drain_progress
from engine_pool.engine_handle import EngineHandle
from engine_pool.engine_look import EngineLook
from engine_pool.errors import InstanceLeaving, InstanceLost
from engine_pool.instance_record import InstanceRecord
from engine_pool.instance_words import drain_words
from engine_pool.policy.lifecycle import Trigger
from engine_pool.policy.wishes import InstanceWish, Leftover, Step, WantedState, in_words
from engine_pool.types import InstanceState

CORDONED: Final = WantedState.CORDONED.value
DRAINING: Final = InstanceState.DRAINING.value
"""Why a door is closed."""
_DRAINS: Final = (InstanceState.DRAINING, InstanceState.DRAINED)


class InstanceSteps:
    """One an instance. Ends no engine: that is the keeper's."""

    def __init__(
        self,
        record: InstanceRecord,
        obstacle: Callable[[], str],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`obstacle`: why requests do not move away, in words."""
        self._record = record
        self._obstacle = obstacle
        self._wall_clock = wall_clock

    async def take(
        self, step: Step, wish: InstanceWish, handle: EngineHandle, look: EngineLook
    ) -> None:
        """Carries a step out. Raises: EngineFailed; the step is due again then."""
        match step:
            case Step.CORDON:
                # Told first: who has heard of it sends nothing that would be refused.
                self._record.move(Trigger.CORDON, in_words(wish), drain=None)
                self._record.event("instance_cordoned", "is cordoned", in_words(wish))
                look.note_open()
                await handle.close_door(CORDONED)
            case Step.DRAIN:
                words = drain_words(wish)
                self._record.move(Trigger.DRAIN, words)
                self._record.event("instance_draining", "is drained", words)
                look.note_open()
                await handle.close_door(DRAINING)
            case Step.SHUT:
                is_cordoned = self._record.status.state is InstanceState.CORDONED
                await handle.close_door(CORDONED if is_cordoned else DRAINING)
            case Step.OPEN:
                await self._open(handle, look)
            case Step.VERIFY:
                look.verified_unix_s = self._wall_clock()
                self._record.move(Trigger.EMPTY, f"proven empty, {drain_words(wish)}")
                self._record.event("instance_drained", "is empty", "no request, no block, no move")
            case Step.LEFTOVER:
                await self._do_leftover(wish, handle, look)
        self._show_drain(wish, look)

    async def _open(self, handle: EngineHandle, look: EngineLook) -> None:
        await handle.open_door()
        look.note_open()
        if self._record.status.state is not InstanceState.SERVING:
            self._record.move(Trigger.UNCORDON, "serves again", drain=None)
            self._record.event("instance_serving", "serves again", "nothing else is wanted of it")

    async def _do_leftover(
        self, wish: InstanceWish, handle: EngineHandle, look: EngineLook
    ) -> None:
        """Ends what is left, or has it go on elsewhere."""
        left = look.pong.running + look.pong.waiting if look.pong is not None else 0
        is_replay = wish.leftover is Leftover.REPLAY
        if look.leftover_done_unix_s is None:
            what = "go on elsewhere from their logs" if is_replay else "are ended"
            self._record.event(
                "drain_deadline", "is past its drain's deadline", f"{left} requests {what}", "warn"
            )
        look.leftover_done_unix_s = self._wall_clock()
        why = f"The deadline of the drain of {self._record.status.instance} has passed."
        await handle.fail_left(InstanceLeaving.code if is_replay else InstanceLost.code, why)

    def _show_drain(self, wish: InstanceWish, look: EngineLook) -> None:
        if self._record.status.state in _DRAINS and look.pong is not None:
            now_unix_s, verified_unix_s = self._wall_clock(), look.verified_unix_s
            drain = drain_progress(look.pong, wish, now_unix_s, self._obstacle(), verified_unix_s)
            self._record.put(drain=drain)
