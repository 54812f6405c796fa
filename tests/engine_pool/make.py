"""Short ways to make the pool's values, with defaults that a test need not care about."""

from engine_pool.ports import EngineRequest
from engine_pool.types import (
    EngineKind,
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
    PriorityClass,
    RequestId,
    RequestLoad,
)

NOW_UNIX_S = 1_000_000.0


def running(
    kv_tokens: int, priority: PriorityClass = PriorityClass.NORMAL, name: str = ""
) -> RequestLoad:
    return RequestLoad(RequestId(name or f"r{kv_tokens}-{priority}"), priority, kv_tokens, 1, 1)


def waiting(
    demand_tokens: int, priority: PriorityClass = PriorityClass.NORMAL, name: str = ""
) -> RequestLoad:
    request_id = RequestId(name or f"w{demand_tokens}-{priority}")
    return RequestLoad(request_id, priority, 0, demand_tokens, 0, demand_tokens)


def load(
    name: str = "i-01",
    *,
    capacity: int = 1600,
    batch: tuple[RequestLoad, ...] = (),
    queue: tuple[RequestLoad, ...] = (),
    used: int | None = None,
    at_unix_s: float = NOW_UNIX_S,
    incarnation: str = "a",
    ended: tuple[RequestId, ...] = (),
) -> InstanceLoad:
    return InstanceLoad(
        instance=InstanceName(name),
        incarnation=incarnation,
        seq=1,
        at_unix_s=at_unix_s,
        capacity_tokens=capacity,
        used_tokens=sum(r.kv_tokens for r in batch) if used is None else used,
        block_size_tokens=16,
        max_running=8,
        running=batch,
        waiting=queue,
        ended=ended,
    )


def status(
    name: str = "i-01",
    state: InstanceState = InstanceState.SERVING,
    incarnation: str = "a",
) -> InstanceStatus:
    return InstanceStatus(
        instance=InstanceName(name),
        pool="default",
        incarnation=incarnation,
        state=state,
        cause="",
        since_unix_s=NOW_UNIX_S,
        node="n",
        model="m",
        engine=EngineKind.SIMULATED,
    )


def request(
    name: str = "r1",
    *,
    prompt_tokens: int = 20,
    max_tokens: int = 10,
    min_tokens: int = 0,
    priority: PriorityClass = PriorityClass.NORMAL,
    arrival_unix_s: float = NOW_UNIX_S,
    payload: bytes = b"",
    epoch: int = 1,
) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(name),
        epoch=epoch,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        priority_class=priority,
        tenant="t",
        arrival_unix_s=arrival_unix_s,
        payload=payload,
    )
