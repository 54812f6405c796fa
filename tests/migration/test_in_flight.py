"""Asynchronous scheduling: a step that has the request is in flight when it is to be parked."""

from migration.ports import Parked, Refusal
from migration.protocol import SourceState
from migration.report import MoveState
from tests.engine_pool.make import request
from tests.migration.moving_fake import MovingFake
from tests.migration.two_sides import Two, until


class InFlightFake(MovingFake):
    """Always has a step in flight: what is parked is in it still, and may end with it."""

    def park(self, request_id: str) -> Refusal | None:
        return None

    def parked(self, request_id: str) -> Parked | None:
        return None

    def unpark(self, request_id: str) -> None:
        return


def test_a_request_that_ends_with_the_step_in_flight_ends_its_move_at_once() -> None:
    two = Two()
    two.a.engine = InFlightFake()
    two.start()
    two.a.submit(request("r", prompt_tokens=9, max_tokens=3))
    two.a.allow(1)
    assert two.migrate("r") is None
    until(lambda: two.a.agent._sources["m1"].state is SourceState.PAUSING)
    two.a.allow(2)
    report = two.end_of()
    assert (report.state, report.abort_code) == (MoveState.ABORTED, "request_finished")
    assert two.log.tokens("r") == [1, 2, 3]
    until(lambda: two.a.loop._unsettled == [])
    two.check_empty()
    two.stop()
