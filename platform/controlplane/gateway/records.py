"""One row a request, written when it has ended, in batches, off the path of any request."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final
from weakref import WeakSet

from django.db import DatabaseError, close_old_connections

from controlplane.gateway import metrics
from controlplane.gateway.call import Call
from controlplane.gateway.models import RequestRecord
from controlplane.gateway.times import times_of
from controlplane.gateway.verdicts import verdicts
from controlplane.usage.prices import prices_of

logger = logging.getLogger(__name__)

WRITE_EVERY_S: Final = 1.0
"""A batch a second: the database sees few transactions, a page sees a request a second later."""
WAITING_MAX: Final = 10_000
"""Rows kept while the database is away, about 10 MB; then the oldest are dropped, and said so."""
BATCH_ROWS: Final = 500
WRITE_PATIENCE_S: Final = 5.0
"""A batch is written within a fraction of a second; one that takes so long waits for the
database."""
LAST_WRITE_S: Final = 2.0
"""For the rows that wait when the process ends; the worker writes what is missing then, from the
requests' logs (usage/unbilled.py)."""


_writers: Final["WeakSet[RecordWriter]"] = WeakSet()


def records_wait() -> bool:
    """Says whether rows of this process wait, since the database did not take them."""
    return any(writer.is_behind for writer in list(_writers))


class RecordWriter:
    """One a pool and web process; `run` is the caller's task."""

    def __init__(self) -> None:
        self._waiting: deque[RequestRecord] = deque()
        self._dropped = 0
        self._is_behind = False
        self._writing_since_s: float | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")
        _writers.add(self)

    @property
    def is_behind(self) -> bool:
        """The last batch could not be written, or takes long."""
        since_s = self._writing_since_s
        hangs = since_s is not None and time.monotonic() - since_s > WRITE_PATIENCE_S
        return self._is_behind or hangs

    def add(
        self,
        call: Call,
        status: str,
        error_code: str = "",
        *,
        is_our_fault: bool = True,
        is_partial: bool = False,
    ) -> None:
        """Queues the row of a call that has ended.

        `is_our_fault`: of one that failed; `is_partial`: it did not come to its end.
        """
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._dropped += 1
        row = to_row(
            call, status, error_code, is_our_fault=is_our_fault, is_partial=is_partial,
            now_s=time.monotonic(),
        )  # fmt: skip
        if not call.is_resumed:
            # Its first reader may have counted it.
            metrics.count_record(row, call.tenant)
        self._waiting.append(row)

    async def run(self) -> None:
        """Writes for ever; writes what waits when it is cancelled."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                await self._write()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self._write()
            self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_ROWS, len(self._waiting)))]
            self._writing_since_s = time.monotonic()
            try:
                await loop.run_in_executor(self._thread, _insert, batch)
            except DatabaseError as error:
                self._waiting.extendleft(reversed(batch))
                if not self._is_behind:
                    why = type(error).__name__
                    logger.warning("request records wait for the database: %s", why)
                self._is_behind = True
                return
            finally:
                self._writing_since_s = None
            self._is_behind = False
        if self._dropped:
            logger.error("%d request records were dropped meanwhile", self._dropped)
            self._dropped = 0


def _insert(rows: list[RequestRecord]) -> None:
    close_old_connections()
    records_write(rows)


def records_write(rows: Sequence[RequestRecord]) -> None:
    """Adds rows with their costs; of a request that has one already the first one stays.

    Two queries. Raises: DatabaseError.
    """
    prices = prices_of(row.model for row in rows)
    for row in rows:
        price = prices.at(row.model, row.ended_at or row.arrived_at)
        row.cost = price.cost(row.prompt_tokens, row.cached_tokens, row.output_tokens)
    # A batch whose answer was lost is written again, and a request may have had several readers:
    # the id is unique.
    RequestRecord.objects.bulk_create(rows, ignore_conflicts=True)


def to_row(
    call: Call,
    status: str,
    error_code: str = "",
    *,
    is_our_fault: bool = True,
    is_partial: bool = False,
    now_s: float,
) -> RequestRecord:
    """Returns the row of a call that ends at `now_s` (monotonic), without its cost."""
    times = times_of(call)
    is_ttft_met, is_tpot_met = verdicts(
        status=status,
        is_our_fault=is_our_fault,
        target=call.target,
        ttft_ms=times.ttft_ms,
        tpot_ms=times.tpot_ms,
    )
    duration_s = now_s - call.arrived_s
    return RequestRecord(
        request_id=call.request_id,
        tenant_id=call.tenant_id,
        key_id=call.key_id,
        client_request_id=call.client_request_id[:128],
        pool=call.pool,
        model=call.model,
        endpoint=call.endpoint,
        priority_class=call.priority_class.value,
        status=status,
        error_code=error_code,
        instance=call.instance,
        instances=list(call.instances),
        migrations=call.migrations,
        replays=call.replays,
        replay_notes=list(call.replay_notes),
        dispatch_reason=call.dispatch_reason,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=call.cached_tokens,
        output_tokens=call.output_tokens,
        is_partial=is_partial,
        arrived_at=datetime.fromtimestamp(call.arrived_unix_s, UTC),
        ended_at=datetime.fromtimestamp(call.arrived_unix_s + duration_s, UTC),
        ttft_ms=times.ttft_ms,
        tpot_ms=times.tpot_ms,
        duration_ms=duration_s * 1000,
        queue_ms=times.queue_ms,
        prefill_ms=times.prefill_ms,
        decode_ms=times.decode_ms,
        migration_ms=times.migration_ms,
        ttft_target_ms=call.target.ttft_ms,
        tpot_target_ms=call.target.tpot_ms,
        is_ttft_met=is_ttft_met,
        is_tpot_met=is_tpot_met,
    )
