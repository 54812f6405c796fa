"""Admission as the doors use it: reserve for a request, settle at its end, tell the client.

| end of a request | its reservation |
|---|---|
| completed, cancelled, failed | charged with what it has used |
| no engine has taken it | given back, as if it had never come |
| its client left and may come back | kept as long as the engine goes on, then charged |
| resumed at another connection | that one's |
| its web process was killed | free when the lease expires; charged by the request's log |
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from controlplane.admission.estimate import Estimate
from controlplane.admission.leases import Asked, Lease
from controlplane.admission.service import STORE_ERRORS, Admission, BudgetUnknown, StoreAway
from controlplane.admission.sources import database_sources
from controlplane.admission.store import AdmissionStore
from controlplane.admission.verdict import LimitName, Verdict, never_fits, refusal_text
from controlplane.gateway import metrics
from controlplane.gateway.errors import STARTING_RETRY_S, ApiError
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.errors import PoolError, ServerStopping, StreamGone, StreamSuperseded
from engine_pool.store import connect_async
from engine_pool.token_log import TokenLogReader

if TYPE_CHECKING:
    from controlplane.gateway.completions import Completion
    from controlplane.gateway.pools import Pools

SETTLED_WITHIN_S: Final = 15.0
"""How much longer than its request a kept lease lives: its end is to be heard of by then."""
NEVER_FITS: Final = "request_exceeds_limit"
_NAMED_BY_PARAM: Final = ("rate_limit_exceeded", "insufficient_quota")


_admissions: Final["WeakKeyDictionary[Pools, Admission]"] = WeakKeyDictionary()


def admission_of(pools: "Pools") -> Admission:
    """Returns the one of a web process: made once, for all its pools."""
    found = _admissions.get(pools)
    if found is None:
        client = pools.default.client
        store = connect_async(client.config.redis_url)
        log = TokenLogReader(store, client.times)
        calls = AdmissionStore(store, log, client.web_process)
        found = _admissions[pools] = Admission(calls, database_sources())
        leases = found.leases
        metrics.LEASES.set_function(lambda: len(leases))
    return found


async def enter(completion: "Completion") -> None:
    """Reserves what a request needs, before anything is made for it. Who comes out of here closes
    an Ending for it.

    The answer's x-ratelimit headers are in `completion` then. Raises: ApiError 400 for a request
    that can never fit, 429 naming the limit, 503 at once when the store does not answer.
    """
    call, admission, policy = completion.call, completion.admission, completion.policy
    if call.is_resumed:
        # It runs already, so it is not refused, and it has been counted.
        completion.lease = _lease_of(completion)
        admission.take_over(completion.lease)
        return
    estimate, limits = completion.estimate, policy.limits
    if (most := never_fits(estimate.tokens, limits, admission.pool_limits(call.pool))) is not None:
        raise _never(estimate, most)
    asked = Asked(call.request_id, call.tenant_id, call.pool, call.model, estimate, limits)
    try:
        with metrics.ADMISSION_S.time():
            verdict = await admission.reserve(asked)
    except StoreAway:
        raise ApiError(
            503,
            "The store does not answer, so no request can be taken now.",
            "store_unavailable",
            retry_after_s=STARTING_RETRY_S,
        ) from None
    except BudgetUnknown:
        raise ApiError(
            503,
            "What is left of the budget cannot be checked now: the database does not answer.",
            "database_unavailable",
            retry_after_s=STARTING_RETRY_S,
        ) from None
    if verdict.refused_by is not None:
        raise _refusal(verdict, verdict.refused_by, estimate)
    completion.headers |= verdict.standing.headers
    completion.lease = _lease_of(completion)
    admission.hold(completion.lease)


def settle(completion: "Completion", outcome: str, error_code: str) -> None:
    """Charges a request at the end of its connection."""
    lease, call, admission = completion.lease, completion.call, completion.admission
    if lease is None:
        return
    if outcome == "detached":
        admission.let_go(lease, completion.detach_s + SETTLED_WITHIN_S)
    elif error_code == StreamSuperseded.code:
        admission.forget(lease)
    elif error_code == ServerStopping.code and call.is_accepted:
        grace_s = completion.runtime.client.config.orphan_grace_s
        admission.let_go(lease, grace_s + SETTLED_WITHIN_S)
    elif call.is_resumed and (outcome != "completed" or error_code == StreamGone.code):
        admission.settle_by_log(lease)
    elif outcome == "failed" and not call.is_accepted:
        admission.give_up(lease)
    else:
        admission.settle(lease)


def settle_left(completion: "Completion") -> None:
    """Charges a request whose client had left, at its real end."""
    if completion.lease is not None:
        completion.admission.settle_left(completion.lease)


async def standing_headers(admission: Admission, policy: KeyPolicy) -> Mapping[str, str]:
    """Returns x-ratelimit-* for an answer that has reserved nothing; none without a store."""
    limits = policy.limits
    if limits.requests_per_minute is None and limits.tokens_per_minute is None:
        return {}
    try:
        return (await admission.look(policy.tenant_id, limits)).headers
    except STORE_ERRORS:
        return {}


def has_standing(headers: Mapping[str, str]) -> bool:
    """Says whether an answer tells how full the limits are."""
    return any(name.startswith("x-ratelimit-") for name in headers)


def count_rejection(error: ApiError) -> None:
    """Counts a request that was not taken for what it is or for who sends it."""
    if error.status in (403, 429, 503) or error.code == NEVER_FITS:
        reason = error.param if error.code in _NAMED_BY_PARAM else error.code
        metrics.REJECTIONS.labels(reason or "other").inc()


def _lease_of(completion: "Completion") -> Lease:
    call = completion.call

    def fail(error: PoolError) -> None:
        front = completion.runtime.front
        for engine_id in call.engine_ids if front is not None else ():
            front.llm.fail(engine_id, error)

    return Lease(call.request_id, call.model, call, completion.policy.public_id, fail)


def _never(estimate: Estimate, most: int) -> ApiError:
    return ApiError(
        400,
        f"This request needs about {estimate.tokens} tokens ({estimate.prompt_tokens} of prompt and"
        f" {estimate.output_tokens} of output); no more than {most} a minute (tpm) are allowed, so"
        " it can never be taken. Shorten the prompt or lower max_tokens.",
        NEVER_FITS,
        "max_tokens",
    )


def _refusal(verdict: Verdict, name: LimitName, estimate: Estimate) -> ApiError:
    standing = verdict.standing
    text = refusal_text(name, standing.limits, estimate.tokens)
    if name is LimitName.BUDGET:
        headers = standing.headers | {"x-should-retry": "false"}
        return ApiError(
            429, text, "insufficient_quota", name, type="insufficient_quota", headers=headers
        )
    return ApiError(
        429, text, "rate_limit_exceeded", name,
        retry_after_ms=verdict.retry_ms, headers=standing.headers,
    )  # fmt: skip
