import threading
from collections.abc import Callable

import pytest

from engine_pool.simulator.costs import CopyCosts
from engine_pool.simulator.plane import SimulatedPlane, TimerThread
from migration.ports import TransferFailed

WAIT_S = 60.0


class Clock:
    """A timer whose time the test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, run: Callable[[], None]) -> None:
        self.due.append((at_s, run))

    def stop(self) -> None:
        self.due.clear()

    def pass_until(self, now_s: float) -> None:
        self.now_s = now_s
        while ready := [one for one in self.due if one[0] <= now_s]:
            one = min(ready, key=lambda due: due[0])
            self.due.remove(one)
            one[1]()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plane(clock) -> SimulatedPlane:
    return SimulatedPlane(timer=clock, clock=clock)


def test_a_copy_takes_as_long_as_the_papers():
    costs = CopyCosts()
    for tokens in (256, 1024, 4096):
        assert costs.copy_ms(tokens // 16) == pytest.approx(15 + 0.211 * tokens)
    assert costs.copy_ms(0) == 0
    assert 6 < costs.copy_ms(1) < costs.copy_ms(2) < 15
    assert CopyCosts(time_scale=0.5).copy_ms(64) == costs.copy_ms(64) / 2
    assert costs.bytes_ms(524_288 * 100) == pytest.approx(21.1)


def test_both_ends_are_done_after_the_copys_time(plane, clock):
    other = SimulatedPlane(timer=clock, clock=clock)
    other.join("c", plane.offer("c").result(0)).result(0)
    ends = [other.receive("c", range(64)), plane.send("c", range(64), urgent=False)]
    clock.pass_until(0.231)
    assert not any(end.done() for end in ends)
    clock.pass_until(0.232)
    for end in ends:
        transfer = end.result(0)
        assert transfer.bytes == 1024 * 524_288
        assert transfer.took_ms == pytest.approx(231.06, abs=0.01)


def test_a_channel_carries_one_transfer_after_the_other(plane, clock):
    plane.offer("c")
    plane.offer("idle")
    first, second = plane.send("c", [1], urgent=True), plane.send("c", [2], urgent=True)
    elsewhere = plane.send("idle", [3], urgent=True)
    clock.pass_until(0.008)
    assert (first.done(), second.done(), elsewhere.done()) == (True, False, True)
    clock.pass_until(0.015)
    assert second.done()


def test_measuring_takes_the_time_of_the_bytes_alone(plane, clock):
    plane.offer("c")
    sent = plane.measure_send("c", 16 * 1024 * 1024)
    got = plane.measure_receive("c", 1)
    clock.pass_until(0.0069)
    assert sent.result(0).bytes == 16 * 1024 * 1024
    assert got.result(0).bytes == 1


def test_a_closed_channel_fails_what_goes_on_and_what_comes(plane, clock):
    plane.offer("c")
    going_on = plane.send("c", [1], urgent=True)
    plane.close("c")
    plane.close("never opened")
    for failed in (going_on, plane.send("c", [1], urgent=True)):
        with pytest.raises(TransferFailed, match=r"channel 'c'|channel c was closed"):
            failed.result(0)
    clock.pass_until(1.0)


def test_a_channel_opened_anew_is_not_touched_by_the_old_ones_transfers(plane, clock):
    plane.offer("c")
    plane.send("c", range(100), urgent=False)
    plane.close("c")
    plane.offer("c")
    anew = plane.send("c", [1], urgent=True)
    clock.pass_until(0.01)
    assert anew.result(0).bytes == 16 * 524_288


def test_an_offer_is_taken_once_and_only_from_one_of_its_kind(plane):
    plane.offer("c")
    assert isinstance(plane.offer("c").exception(0), TransferFailed)
    assert isinstance(plane.join("c", "simulated").exception(0), TransferFailed)
    with pytest.raises(TransferFailed, match="no simulated engine's offer"):
        plane.join("d", "127.0.0.1:20000").result(0)


def test_the_timers_thread_keeps_to_the_order_of_the_times():
    timer, order, done = TimerThread(), [], threading.Event()

    def plan() -> None:
        # In the timer's own thread, which meanwhile runs nothing else.
        timer.call_at(0.3, done.set)
        timer.call_at(0.2, lambda: order.append("late"))
        timer.call_at(0.1, lambda: order.append("early"))

    timer.call_at(0.0, plan)
    assert done.wait(WAIT_S)
    assert order == ["early", "late"]
    timer.stop()


def test_a_real_timer_ends_a_transfer():
    plane = SimulatedPlane(CopyCosts(time_scale=0.01))
    plane.offer("c")
    assert plane.receive("c", range(8)).result(WAIT_S).bytes == 8 * 16 * 524_288
    plane.shut_down()


def test_a_plane_that_is_shut_down_fails_its_transfers():
    plane = SimulatedPlane(CopyCosts(time_scale=1000))
    plane.offer("c")
    transfer = plane.send("c", [1], urgent=True)
    plane.shut_down()
    with pytest.raises(TransferFailed, match="closed"):
        transfer.result(WAIT_S)
    with pytest.raises(TransferFailed, match="no channel"):
        plane.send("c", [1], urgent=True).result(WAIT_S)
