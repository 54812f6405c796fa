"""Moves at the edges of what engines and channels take."""

from migration import messages
from migration.report import MoveState
from tests.engine_pool.make import request
from tests.migration.two_sides import Two, run_to_end, until


def test_a_request_in_the_last_block_that_the_model_takes_can_move(two: Two) -> None:
    for side in (two.a, two.b):
        side.engine.blocks_max = 6
    # 24 tokens are six blocks; it is in the last one.
    two.a.submit(request("r", prompt_tokens=19, max_tokens=5))
    two.a.allow(3)
    assert two.migrate("r") is None
    assert two.end_of().state is MoveState.COMMITTED
    run_to_end(two, "r", 5)
    two.check_empty()


def test_a_channel_that_the_destination_listens_on_is_not_used_again(two: Two) -> None:
    def no_ack_of_a_stage(blob: bytes) -> bool:
        message = messages.decode(blob)
        return not (isinstance(message, messages.Ack) and message.number)

    two.a.gate = no_ack_of_a_stage
    two.a.submit(request("r", prompt_tokens=21, max_tokens=60))
    two.a.allow(3)
    assert two.migrate("r") is None
    until(lambda: two.hub.waiting)
    assert two.a.agent.cancel("m1").result(60)
    assert two.end_of().abort_code == "cancelled"
    two.a.gate = lambda blob: True
    assert two.migrate("r", "m2") is None
    assert two.end_of("m2").state is MoveState.COMMITTED
    run_to_end(two, "r", 60)
    two.check_empty()
