"""One row a request, written when it has ended, in batches, off the path of any request."""

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

from django.db import DatabaseError, close_old_connections

from controlplane.gateway.call import Call
from controlplane.gateway.models import RequestRecord

logger = logging.getLogger(__name__)

WRITE_EVERY_S: Final = 1.0
"""A batch a second: the database sees few transactions, a page sees a request a second later."""
WAITING_MAX: Final = 10_000
"""Rows kept while the database is away, about 10 MB; then the oldest are dropped, and said so."""
BATCH_ROWS: Final = 500


class RecordWriter:
    """One a web process; `run` is the caller's task."""

    def __init__(self) -> None:
        self._waiting: deque[RequestRecord] = deque()
        self._dropped = 0
        self._is_behind = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")

    @property
    def is_behind(self) -> bool:
        """The last batch could not be written."""
        return self._is_behind

    def add(self, call: Call, status: str, error_code: str = "") -> None:
        """Queues the row of a call that has ended."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(_to_row(call, status, error_code, time.monotonic()))

    async def run(self) -> None:
        """Writes for ever; writes what waits when it is cancelled."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                await self._write()
        finally:
            await self._write()
            self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_ROWS, len(self._waiting)))]
            try:
                await loop.run_in_executor(self._thread, _insert, batch)
            except DatabaseError as error:
                self._waiting.extendleft(reversed(batch))
                self._is_behind = True
                logger.warning("request records wait for the database: %s", type(error).__name__)
                return
            self._is_behind = False
        if self._dropped:
            logger.error("%d request records were dropped meanwhile", self._dropped)
            self._dropped = 0


def _insert(rows: list[RequestRecord]) -> None:
    close_old_connections()
    # A batch whose answer was lost is written again: the id is unique.
    RequestRecord.objects.bulk_create(rows, ignore_conflicts=True)


def _to_row(call: Call, status: str, error_code: str, now_s: float) -> RequestRecord:
    first_s, last_s = call.first_token_s, call.last_token_s
    gaps = max(call.choice_tokens.values(), default=0) - 1
    return RequestRecord(
        request_id=call.request_id,
        tenant_id=call.tenant_id,
        endpoint=call.endpoint,
        priority_class=call.priority_class.value,
        status=status,
        error_code=error_code,
        instance=call.instance,
        instances=list(call.instances),
        migrations=call.migrations,
        dispatch_reason=call.dispatch_reason,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=call.cached_tokens,
        output_tokens=call.output_tokens,
        arrived_at=datetime.fromtimestamp(call.arrived_unix_s, UTC),
        ttft_ms=None if first_s is None else (first_s - call.arrived_s) * 1000,
        tpot_ms=None
        if first_s is None or last_s is None or gaps < 1
        else (last_s - first_s) * 1000 / gaps,
        duration_ms=(now_s - call.arrived_s) * 1000,
    )
