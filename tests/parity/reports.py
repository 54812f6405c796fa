"""What live instances would say, made from the books of simulated ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine_pool.policy.standing import CLASSES
from engine_pool.rebalancer import ASKED_BY
from engine_pool.simulator.books_model import Candidate
from engine_pool.simulator.engine_model import Engine
from engine_pool.simulator.instance_model import Instance
from engine_pool.simulator.move_record import Move
from engine_pool.simulator.sim_request import SimRequest
from engine_pool.types import (
    EngineKind,
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
    RequestId,
    RequestLoad,
)
from migration.report import SHOWN, MessageReport, MoveReport, MoveState

INCARNATION = "a"
NOBODYS = "of an instance that is gone"
"""A move of this incarnation goes on, and changes no report."""


@dataclass(frozen=True, slots=True, eq=False)
class StartedMove:
    """A move of the simulator, as it was decided on."""

    move: Move
    candidate: Candidate
    migration_id: str
    """The live side's name for it."""


def status_of(name: InstanceName, state: InstanceState) -> InstanceStatus:
    return InstanceStatus(
        instance=name,
        pool="default",
        incarnation=INCARNATION,
        state=state,
        cause="",
        since_unix_s=0.0,
        node="n",
        model="m",
        engine=EngineKind.SIMULATED,
    )


def report_of(
    engine: Engine, at_unix_s: float, seq: int, ended: Iterable[RequestId] = ()
) -> InstanceLoad:
    """Makes an engine's report of its present state: virtual seconds stand for seconds since the
    epoch."""
    s = engine.standing
    return InstanceLoad(
        instance=engine.name,
        incarnation=INCARNATION,
        seq=seq,
        at_unix_s=at_unix_s,
        capacity_tokens=s.capacity_tokens,
        used_tokens=s.used_tokens,
        block_size_tokens=s.block_size_tokens,
        max_running=s.max_running,
        running=tuple(_running(engine)),
        waiting=tuple(_waiting(engine, r) for _, r in engine.waiting),
        ended=tuple(ended),
    )


def _running(engine: Engine) -> Iterable[RequestLoad]:
    """Lists who holds blocks and is this engine's own. While a decode step goes on, a request has
    the room of its next token already."""
    size = engine.standing.block_size_tokens
    ahead = 0 if engine.prefilling else 1
    for r in engine.batch.members.values():
        tokens = engine.batch.tokens_of(r)
        blocks = engine.blocks_for(tokens + ahead)
        yield _request(r, kv_tokens=blocks * size, output_tokens=tokens - r.prompt_tokens)
    # Neither decodes: the simulator moves them no more than a prompt that is being computed, which
    # live is known by its having no output. That a preempted request's old output is computed
    # again with its prompt, no live report says; and a moved one joins the batch in no time there.
    for r in (*engine.prefilling, *engine.joining):
        yield _request(r, kv_tokens=r.blocks * size, output_tokens=0)
    # Live, a report shows nothing of a request that is out of the batch for its pause but its used
    # tokens; the simulator counts it as running until its move has ended.
    for parked in engine.parked.values():
        if parked.blocks:
            yield _request(parked.request, kv_tokens=parked.blocks * size, output_tokens=1)


def _waiting(engine: Engine, r: SimRequest) -> RequestLoad:
    return replace(
        _request(r, kv_tokens=0, output_tokens=r.tokens - r.prompt_tokens),
        demand_tokens=engine.demand_tokens(r),
    )


def _request(r: SimRequest, *, kv_tokens: int, output_tokens: int) -> RequestLoad:
    return RequestLoad(r.request_id, CLASSES[r.rank], kv_tokens, r.prompt_tokens, output_tokens)


def as_when_it_was_decided(load: InstanceLoad, leaving: Iterable[StartedMove]) -> InstanceLoad:
    """Gives requests on their way the KV tokens that they had when their move was decided.

    The simulator takes those out of its sums; live, what the last report shows is taken out, which
    is a block more where the request has grown since.
    """
    held = {one.candidate.name: one.candidate.kv_tokens for one in leaving}
    running = tuple(replace(r, kv_tokens=held.get(r.request_id, r.kv_tokens)) for r in load.running)
    return replace(load, running=running)


def move_report_of(one: StartedMove, destination: Instance, now_s: float, seq: int) -> MoveReport:
    """Makes a move's report as of now."""
    move, candidate = one.move, one.candidate
    state, at_s, incarnation = SHOWN[move.source_state], now_s, INCARNATION
    if move.is_over and not move.abort_code:
        assert move.left_s is not None, "a committed move has freed its source"
        state, at_s = MoveState.COMMITTED, move.left_s
    elif move.is_over:
        state = MoveState.ABORTED
    elif move.abort_code:
        # For a message's time, or a copy's, the destination has not let go. The simulator counts
        # the move until then but not its request; live both end with the source's word.
        state, incarnation = MoveState.RESERVING, NOBODYS
    # The simulator takes for granted that the room held is the room needed; live, it is what the
    # destination has said, which may be a block less.
    is_held = candidate.request.index in destination.seen_held
    size = destination.engine.standing.block_size_tokens
    return MoveReport(
        migration_id=one.migration_id,
        request_id=candidate.name,
        seq=seq,
        state=state,
        source=move.source.name,
        source_incarnation=incarnation,
        destination=move.destination.name,
        destination_incarnation=incarnation,
        started_unix_s=move.started_s,
        at_unix_s=at_s,
        asked_by=ASKED_BY,
        reason=move.reason,
        priority_class=CLASSES[candidate.rank].value,
        is_queued=move.is_queued,
        prompt_tokens=candidate.request.prompt_tokens,
        tokens_at_start=candidate.kv_tokens,
        block_size_tokens=size,
        reserved_blocks=candidate.need_tokens // size if is_held else 0,
        messages=(MessageReport(0.0, "destination", "Ack"),) if is_held else (),
        abort_code=move.abort_code,
    )
