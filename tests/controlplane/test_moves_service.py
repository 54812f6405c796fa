"""What an operator asks for leaves rows, and moves that end come into the database."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.contrib.auth.models import User
from django.db import OperationalError

from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.fleet import move_rows, moves
from controlplane.fleet.models import MigrationRecord
from controlplane.fleet.move_rows import migrations_copy, migrations_give_up
from controlplane.fleet.moves import migration_cancel, migration_request
from engine_pool.errors import InstanceLost, MoveRefused, RequestNotRunning
from engine_pool.pool_keys import FIRST
from engine_pool.view import MOVES_ENDED, Bulletin
from migration.report import MoveState
from tests.controlplane.moving_pool import MovingPool, aborted, committed, report_of


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> MovingPool:
    made = MovingPool()
    monkeypatch.setattr(moves, "pool_client", lambda: made)
    made.serve("i-01", "i-02", running={"i-01": ["r1", "0_chatcmpl-ab", "1_chatcmpl-ab"]})
    return made


@pytest.fixture
def olga(db: None) -> User:
    return User.objects.create_user("olga", password="x", is_staff=True)


def ask(
    user: User, request_id: str = "r1", destination: str | None = "i-02", reason: str = ""
) -> str:
    return migration_request(
        user=user, request_id=request_id, destination=destination, reason=reason
    ).migration_id


def test_a_move_that_begins_has_its_row_and_its_audit_entry(pool: MovingPool, olga: User) -> None:
    migration_id = ask(olga, reason="i-01 is hot")
    actor, wish = pool.gate.wishes[0]
    assert actor == "actor-i-01"
    assert wish["migration_id"] == migration_id
    assert wish["destination"] == "i-02"
    assert wish["asked_by"] == "operator olga"
    row = MigrationRecord.objects.get(migration_id=migration_id)
    assert (row.state, row.source, row.destination, row.ended_at) == ("asked", "i-01", "i-02", None)
    audit = AuditEntry.objects.get()
    assert (audit.who, audit.action, audit.object) == ("olga", "migrate_request", "r1")
    assert (audit.result, audit.migration_id) == (AuditResult.DONE, migration_id)
    assert (audit.before, audit.after) == ({"instance": "i-01"}, {"instance": "i-02"})


def test_the_reason_has_the_persons_words_and_both_freenesses(pool: MovingPool, olga: User) -> None:
    ask(olga, destination=None, reason=" i-01 is hot ")
    reason = str(pool.gate.wishes[0][1]["reason"])
    # (10,000 tokens - 160 in use) / 3 at i-01; nothing runs at i-02.
    assert reason == "operator olga: i-01 is hot; i-01 3280 decode steps, i-02 idle"


def test_two_busy_instances_are_compared_in_steps(pool: MovingPool, olga: User) -> None:
    pool.serve("i-03", running={"i-03": ["x"]})
    ask(olga, destination="i-03")
    assert pool.gate.wishes[0][1]["reason"] == "operator olga; i-01 3280, i-03 9840 decode steps"


def test_a_refused_move_leaves_an_audit_entry_and_no_row(pool: MovingPool, olga: User) -> None:
    pool.gate.refusal = ("refused", "the request uses a LoRA adapter and stays where it is")
    with pytest.raises(MoveRefused, match="LoRA"):
        ask(olga)
    audit = AuditEntry.objects.get()
    assert audit.result == AuditResult.REFUSED
    assert "LoRA" in audit.detail
    assert audit.migration_id == ""
    assert not MigrationRecord.objects.exists()


def test_a_source_that_is_silent_is_audited_as_failed_with_the_moves_id(
    pool: MovingPool, olga: User
) -> None:
    pool.gate.is_silent = True
    with pytest.raises(InstanceLost):
        ask(olga)
    audit = AuditEntry.objects.get()
    assert audit.result == AuditResult.FAILED
    assert audit.migration_id, "it may have begun, and would be told of under this id"


def test_an_unknown_request_is_audited_too(pool: MovingPool, olga: User) -> None:
    with pytest.raises(RequestNotRunning):
        ask(olga, request_id="nobody")
    assert AuditEntry.objects.get().object == "nobody"


def test_a_public_id_of_several_choices_is_refused_naming_them(
    pool: MovingPool, olga: User
) -> None:
    with pytest.raises(MoveRefused, match="0_chatcmpl-ab, 1_chatcmpl-ab") as caught:
        ask(olga, request_id="chatcmpl-ab")
    assert caught.value.reason == "ambiguous_request"


@pytest.mark.parametrize(
    ("asked", "shown", "meant"),
    [
        pytest.param("chatcmpl-a", ["chatcmpl-a", "chatcmpl-ab"], ["chatcmpl-a"], id="itself"),
        pytest.param("cmpl-a", ["cmpl-a-0", "cmpl-ab-0"], ["cmpl-a-0"], id="one prompt"),
        pytest.param("cmpl-a", ["0_cmpl-a-1", "cmpl-a-0"], ["0_cmpl-a-1", "cmpl-a-0"], id="both"),
        pytest.param("cmpl.a", ["cmpl-a"], [], id="no pattern"),
        pytest.param("", ["0_x"], [], id="empty"),
    ],
)
def test_an_id_means_itself_or_its_children(asked: str, shown: list[str], meant: list[str]) -> None:
    assert moves.engine_requests(asked, shown) == meant


def test_a_move_goes_on_though_the_database_does_not_answer(
    pool: MovingPool, olga: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(AuditEntry, "save", fail)
    monkeypatch.setattr(MigrationRecord.objects, "bulk_create", fail)
    assert ask(olga) == pool.gate.wishes[0][1]["migration_id"]


def test_a_row_written_late_does_not_undo_the_end(pool: MovingPool, olga: User) -> None:
    move = committed("m1")
    move_rows.row_of(move, "default").save()
    moves._write_asked(report_of("m1", state=MoveState.ASKED), "default")
    assert MigrationRecord.objects.get().state == "committed"


def test_a_cancelled_move_is_audited(pool: MovingPool, olga: User) -> None:
    pool.view.apply(report_of("m1"))
    migration_cancel(user=olga, migration_id="m1", reason="wrong one")
    assert pool.gate.cancelled == [("actor-i-01", "m1")]
    audit = AuditEntry.objects.get()
    assert (audit.action, audit.result, audit.request_id) == ("cancel_move", AuditResult.DONE, "r1")
    assert audit.before == {"state": "copying"}


def test_cancelling_what_has_ended_is_refused_and_audited(pool: MovingPool, olga: User) -> None:
    pool.view.apply(committed("m1"))
    with pytest.raises(MoveRefused):
        migration_cancel(user=olga, migration_id="m1")
    assert AuditEntry.objects.get().result == AuditResult.REFUSED


def test_audit_entries_are_never_changed_or_deleted(olga: User) -> None:
    entry = AuditEntry(who="olga", action="x", object="y", result=AuditResult.DONE)
    entry.save()
    entry.who = "somebody else"
    with pytest.raises(PermissionError):
        entry.save()
    with pytest.raises(PermissionError):
        entry.delete()
    assert AuditEntry.objects.get().who == "olga"


@pytest.fixture
def copy(db: None, store: "redis.Redis[bytes]") -> Callable[[], int]:
    return lambda: migrations_copy(store=store, pool="default")


def test_an_ended_move_completes_its_row(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    move_rows.row_of(report_of("m1", state=MoveState.ASKED), "default").save()
    Bulletin(store).report_move(committed("m1"))
    Bulletin(store).report_move(aborted("m2", asked_by="rebalancer"))
    assert copy() == 2
    done, given_up = MigrationRecord.objects.order_by("migration_id")
    assert (done.state, done.downtime_ms, done.total_ms, done.stages) == ("committed", 9.0, 60.0, 2)
    assert done.ended_at == done.started_at + timedelta(milliseconds=60)
    assert move_rows.report_of(done).stages[1].is_last
    assert (given_up.asked_by, given_up.abort_code) == ("rebalancer", "no_blocks")


def test_copying_again_changes_nothing(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    Bulletin(store).report_move(committed("m1"))
    assert copy() == 1
    assert copy() == 0
    store.delete(FIRST.moves_copied_to)
    assert copy() == 1
    assert MigrationRecord.objects.count() == 1


def test_two_ends_of_one_move_in_one_batch_are_one_row_the_later_one(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    Bulletin(store).report_move(aborted("m1", "peer_lost", seq=2))
    Bulletin(store).report_move(committed("m1", seq=9))
    copy()
    assert MigrationRecord.objects.get().state == "committed"


def test_a_report_that_cannot_be_read_holds_up_none_behind_it(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    store.xadd(MOVES_ENDED, {"m": b"\xc1 of another version"})
    Bulletin(store).report_move(committed("m2"))
    copy()
    assert MigrationRecord.objects.get().migration_id == "m2"


def test_the_position_stays_when_the_database_fails(
    store: "redis.Redis[bytes]", copy: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    Bulletin(store).report_move(committed("m1"))
    with monkeypatch.context() as patch:

        def fail(*args: object, **kwargs: object) -> None:
            raise OperationalError("database is locked")

        patch.setattr(MigrationRecord.objects, "bulk_create", fail)
        with pytest.raises(OperationalError):
            copy()
    assert copy() == 1
    assert MigrationRecord.objects.count() == 1


def test_a_store_that_lost_its_memory_is_copied_from_its_beginning(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    Bulletin(store).report_move(committed("m1"))
    copy()
    store.flushall()
    Bulletin(store).report_move(committed("m2"))
    copy()
    assert MigrationRecord.objects.count() == 2


def test_a_row_without_a_live_move_is_given_up_after_two_minutes(
    store: "redis.Redis[bytes]", db: None
) -> None:
    move_rows.row_of(report_of("m1", state=MoveState.ASKED), "default").save()
    now = datetime.now(UTC)
    assert migrations_give_up(store=store, now=now + timedelta(seconds=60)) == 0
    assert migrations_give_up(store=store, now=now + timedelta(seconds=180)) == 1
    row = MigrationRecord.objects.get()
    assert (row.state, row.abort_code) == ("aborted", "peer_lost")
    assert "nothing was heard of it for 120 s, last that it was asked" in row.abort_reason
    assert move_rows.report_of(row).state is MoveState.ABORTED


def test_a_row_whose_move_is_reported_stays(store: "redis.Redis[bytes]", db: None) -> None:
    began_unix_s = time.time() - 600
    move = report_of("m1", started_unix_s=began_unix_s)
    move_rows.row_of(move, "default").save()
    Bulletin(store).report_move(move)
    assert migrations_give_up(store=store, now=datetime.now(UTC)) == 0
    assert MigrationRecord.objects.get().state == "copying"


def test_an_end_told_for_a_dead_source_is_not_undone_by_an_older_report(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    Bulletin(store).report_move(aborted("m1", "peer_lost", seq=1_000_005, ended_ms=None))
    copy()
    Bulletin(store).report_move(committed("m1", seq=9))
    copy()
    row = MigrationRecord.objects.get()
    assert row.abort_code == "peer_lost"
    assert row.ended_at is not None
    assert row.total_ms == pytest.approx(5000, abs=100), "up to the report"


def test_an_end_that_comes_late_puts_a_given_up_row_right(
    store: "redis.Redis[bytes]", copy: Callable[[], int]
) -> None:
    move_rows.row_of(report_of("m1"), "default").save()
    migrations_give_up(store=store, now=datetime.now(UTC) + timedelta(seconds=180))
    Bulletin(store).report_move(committed("m1"))
    copy()
    row = MigrationRecord.objects.get()
    assert (row.state, row.abort_code, row.downtime_ms) == ("committed", "", 9.0)
