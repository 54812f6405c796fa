"""Rows of requests while the database is away: kept, said, bounded, written afterwards."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from django.db import OperationalError

from controlplane.gateway import records
from controlplane.gateway.call import Call
from controlplane.gateway.records import RecordWriter, records_wait
from engine_pool.types import PriorityClass
from tests.controlplane.fakes import until

pytestmark = pytest.mark.asyncio


class Database:
    """Stands for the insert."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.is_away = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def insert(self, rows: list[Any]) -> None:
        if self.is_away:
            raise OperationalError("away")
        self.goes_on.wait(60)
        self.written += [row.request_id for row in rows]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr(records, "_insert", made.insert)
    monkeypatch.setattr(records, "WRITE_EVERY_S", 0.005)
    monkeypatch.setattr(records, "LAST_WRITE_S", 0.05)
    return made


def call(number: int) -> Call:
    return Call(
        request_id=f"r-{number}", endpoint="chat", tenant_id=1, tenant="t",
        priority_class=PriorityClass.NORMAL, model="m", key_id=1,
    )  # fmt: skip


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def test_rows_wait_for_the_database_and_come_in_order(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RecordWriter()
    task = asyncio.create_task(writer.run())
    database.is_away = True
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            writer.add(call(number), "completed")
        await until(lambda: writer.is_behind)
        assert records_wait()
        for _ in range(3):
            await asyncio.sleep(0.01)
    assert caplog.text.count("wait for the database") == 1, "told once"
    writer.add(call(3), "completed")
    assert database.written == []
    database.is_away = False
    await until(lambda: len(database.written) == 4)
    assert database.written == ["r-0", "r-1", "r-2", "r-3"]
    await until(lambda: not writer.is_behind)
    await ended(task)


async def test_a_database_that_hangs_is_noticed_and_does_not_hold_up_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "WRITE_PATIENCE_S", 0.01)
    writer = RecordWriter()
    task = asyncio.create_task(writer.run())
    database.goes_on.clear()
    writer.add(call(0), "completed")
    await until(lambda: writer.is_behind)
    await ended(task)
    database.goes_on.set()


async def test_what_is_kept_is_bounded_and_what_is_dropped_is_said(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "WAITING_MAX", 2)
    writer = RecordWriter()
    for number in range(5):
        writer.add(call(number), "completed")
    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(writer.run())
        await until(lambda: database.written == ["r-3", "r-4"])
        await until(lambda: "3 request records were dropped" in caplog.text)
    await ended(task)


async def test_a_writer_that_is_gone_counts_no_more(database: Database) -> None:
    writer = RecordWriter()
    writer._writing_since_s = time.monotonic() - 3600
    assert records_wait()
    writer._writing_since_s = None
    assert not writer.is_behind
