"""Moves for Prometheus, and what a request's record says of its moves."""

import time

from prometheus_client import REGISTRY

from controlplane.celery import app
from controlplane.gateway import records
from controlplane.gateway.call import Call
from controlplane.gateway.models import RequestStatus
from controlplane.gateway.pool_metrics import MoveCounter
from engine_pool.types import PriorityClass
from tests.controlplane.moving_pool import aborted, committed, report_of


def count(reason: str, result: str) -> float:
    labels = {"reason": reason, "result": result}
    return REGISTRY.get_sample_value("ferry:migrations_total", labels) or 0.0


def downtimes() -> float:
    return REGISTRY.get_sample_value("ferry:migration_downtime_seconds_count") or 0.0


def test_a_move_counts_once_when_it_ends() -> None:
    counter = MoveCounter()
    before, paused = count("operator", "committed"), downtimes()
    counter(report_of("m1"))
    assert count("operator", "committed") == before
    counter(committed("m1"))
    counter(committed("m1"))
    assert count("operator", "committed") == before + 1
    assert downtimes() == paused + 1


def test_an_abort_counts_under_its_code_and_has_no_downtime() -> None:
    counter = MoveCounter()
    before, paused = count("rebalancer", "no_blocks"), downtimes()
    counter(aborted("m1", asked_by="rebalancer"))
    assert count("rebalancer", "no_blocks") == before + 1
    assert downtimes() == paused


def test_labels_stay_bounded_whatever_a_report_says() -> None:
    before = count("other", "other")
    MoveCounter()(aborted("m1", "a new code", asked_by="somebody's script"))
    assert count("other", "other") == before + 1


def test_a_requests_row_has_its_instances_and_moves() -> None:
    call = Call("chatcmpl-1", "chat", 1, "alice", PriorityClass.NORMAL)
    call.instance, call.instances, call.migrations = "i-02", ["i-01", "i-02"], 1
    row = records.to_row(call, RequestStatus.COMPLETED, now_s=time.monotonic())
    assert (row.instance, row.instances, row.migrations) == ("i-02", ["i-01", "i-02"], 1)


def test_the_worker_copies_moves_every_two_seconds() -> None:
    entry = app.conf.beat_schedule["copy moves"]
    app.loader.import_default_modules()
    assert entry["task"] in app.tasks
    assert entry["schedule"] == 2.0
