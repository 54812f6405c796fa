"""Whether a request kept what it was promised. Pure.

TTFT is the time from the arrival to the first token, TPOT the mean time per token after the first,
both as the gateway sees them. A request counts for its SLO when it has a verdict on either target;
it is good when no verdict is "missed" (Google's SRE workbook, ch. 2: good events / valid events).
"""

from controlplane.gateway.models import RequestStatus
from controlplane.tenants.selectors import Target


def verdicts(
    *,
    status: str,
    is_our_fault: bool,
    target: Target,
    ttft_ms: float | None,
    tpot_ms: float | None,
) -> tuple[bool | None, bool | None]:
    """Returns whether TTFT and TPOT kept their targets; None: there is nothing to say.

    What failed by our fault has missed every target that it had. What was cancelled before its
    first token counts for nothing, as what failed by its client's fault (4xx). An answer of one
    token has no TPOT. `is_our_fault` matters for what has failed alone.
    """
    if status == RequestStatus.FAILED:
        if not is_our_fault:
            return None, None
        return _missed(target.ttft_ms), _missed(target.tpot_ms)
    return _kept(ttft_ms, target.ttft_ms), _kept(tpot_ms, target.tpot_ms)


def _missed(target_ms: float | None) -> bool | None:
    return None if target_ms is None else False


def _kept(took_ms: float | None, target_ms: float | None) -> bool | None:
    return None if took_ms is None or target_ms is None else took_ms <= target_ms
