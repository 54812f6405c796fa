"""Admission's calls to the store: thin, one round trip each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.admission.batches import BatchedScript
from controlplane.admission.leases import Asked, Change
from controlplane.admission.scripts import (
    CHANGE,
    EXPIRED,
    LOOK,
    RESERVE,
    SPENT_KEPT_S,
    spent_key,
)
from controlplane.admission.verdict import PoolLimits, limit_args
from engine_pool.token_log import TokenLogReader, request_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

ANSWER_TIMEOUT_S: Final = 5.0
"""A script takes microseconds, and a store that is away refuses at once; but a burst of hundreds of
requests keeps a web process from its sockets for a second or two, which is no dead store."""
_PLACE: Final = b"at:"
"""Before an engine request's id in a request's record (gateway/resume.py)."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A lease that nobody has renewed."""

    request_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Logged:
    """What the token logs of a request's choices say."""

    output_tokens: int
    is_ended: bool
    """All of them have ended."""


class AdmissionStore:
    """One a web process. All calls raise redis.RedisError, OSError, TimeoutError."""

    def __init__(self, store: "Redis[bytes]", log: TokenLogReader, owner: str) -> None:
        self._store = store
        self._log = log
        self._owner = owner
        self._reserve = BatchedScript(store, RESERVE, ANSWER_TIMEOUT_S)
        self._change = store.register_script(CHANGE)
        self._look = store.register_script(LOOK)
        self._expired = store.register_script(EXPIRED)

    async def reserve(
        self, asked: Asked, pool: PoolLimits, cost_units: int, lease_ms: int
    ) -> tuple[Sequence[int], str]:
        """Returns the script's numbers and the month that they are about."""
        args = [
            *(asked.request_id, self._owner, lease_ms, asked.tenant_id, asked.pool, asked.model),
            *(asked.estimate.prompt_tokens, asked.estimate.tokens, cost_units),
            *limit_args(asked.limits, pool),
        ]
        *numbers, month = await self._reserve.call(args)
        return numbers, month.decode()

    async def change(self, changes: Sequence[Change]) -> tuple[set[str], set[str]]:
        """Returns the leases that are not this process's, and those that were settled too early."""
        args = [arg for change in changes for arg in change.args(self._owner)]
        others, settled = await self._change(keys=[], args=args)
        return {i.decode() for i in others}, {i.decode() for i in settled}

    async def look(self, tenant_id: int) -> Sequence[int]:
        """Returns the numbers of a tenant's standing."""
        found: Sequence[int] = await self._look(keys=[], args=[tenant_id, 0])
        return found[:5]

    async def set_spent(self, tenant_id: int, month: str, cost_units: int) -> None:
        """Says what a tenant has spent in a month, unless the store knows."""
        key = spent_key(tenant_id, month)
        await self._store.set(key, cost_units, nx=True, ex=SPENT_KEPT_S)

    async def expired(self, count: int) -> list[Expired]:
        """Returns leases that have expired and are not settled."""
        found = await self._expired(keys=[], args=[count])
        rows = zip(*(iter(found),) * 4, strict=True)
        return [Expired(i.decode(), m.decode(), int(p), int(c)) for i, m, p, c in rows]

    async def logged(self, request_id: str) -> Logged | None:
        """Returns what a request's engines have produced, None when none has ever had it."""
        names = await self._store.hkeys(request_key(request_id))
        ids = [name[len(_PLACE) :].decode() for name in names if name.startswith(_PLACE)]
        if not ids:
            return None
        frames = [(await self._log.newest(engine_id))[1] for engine_id in ids]
        return Logged(
            sum(frame.end for frame in frames if frame is not None),
            all(frame is not None and frame.is_last for frame in frames),
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._reserve.aclose()
        await self._store.aclose()
