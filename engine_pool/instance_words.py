"""What an instance's causes say, where they are put together of several facts. Pure."""

from engine_pool.policy.wishes import InstanceWish, WantedState, in_words
from engine_pool.types import CRASH_LOOP_FAILURES, InstanceStatus


def start_words(status: InstanceStatus, failures: int) -> str:
    """Says which start of an instance this is."""
    if failures:
        return f"restart {status.restarts}"
    return "first start" if status.engine_started_unix_s is None else "started anew"


def failure_cause(why: str, failures: int, delay_s: float) -> str:
    """Says why an engine was lost and when the next one is started."""
    if failures < CRASH_LOOP_FAILURES:
        return f"{why}, restart in {delay_s:g} s"
    return f"crash loop: {failures} failures in a row, the last: {why}, next try in {delay_s:g} s"


def drain_words(wish: InstanceWish) -> str:
    """Says why an instance is drained: to be empty or stopped, or to be started anew."""
    if wish.wanted.rank >= WantedState.DRAINED.rank:
        return in_words(wish)
    by = f" by {wish.by}" if wish.by else ""
    reason = f": {wish.reason}" if wish.reason else ""
    return f"to be started anew{by}{reason}"
