"""What is wanted of an instance or a node and how far it is, in words: for pages and command.

Pure, and decides nothing: wish_selectors.py does.
"""

from datetime import UTC, datetime
from typing import Final

from controlplane.fleet.captions import short_time
from controlplane.fleet.wish_selectors import InstanceDrain, NodeDrain
from engine_pool.policy.wishes import Leftover, WantedState

PROOF: Final = "0 requests, 0 blocks, 0 transfers"
"""What the pool process has checked before it says that an instance is empty."""
ENDED: Final = "Its engine has ended: nothing runs there."
LEFTOVER_WORDS: Final = {
    Leftover.WAIT: "wait for it",
    Leftover.REPLAY: "replay it elsewhere",
    Leftover.END: "end it with an error",
}


def plural(count: int, word: str) -> str:
    """Returns "1 request", "2 requests"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def clock_words(unix_s: float) -> str:
    """Returns the time of day in UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S} UTC"


def safe_words(verified_unix_s: float | None) -> str:
    """Returns the proof; without a check it is that the engine has ended."""
    if verified_unix_s is None:
        return f"Safe to stop. {ENDED}"
    return f"Safe to stop. Verified empty at {clock_words(verified_unix_s)}: {PROOF}."


def wanted_words(drain: InstanceDrain) -> str:
    """Says what is wanted, by whom and why, as a sentence; empty when it is to serve."""
    wish = drain.wish
    if drain.is_renewing and wish.wanted in (WantedState.SERVING, WantedState.CORDONED):
        what = "A new engine is wanted"
    elif wish.wanted is WantedState.SERVING:
        return ""
    else:
        what = f"{wish.wanted.value.capitalize()} is wanted"
    who = f" by {wish.by}" if wish.by else ""
    node = drain.of_node
    with_node = node is not None and node.wanted == wish.wanted and drain.own is None
    where = f" of the whole node {drain.node}" if with_node else ""
    why = f': "{wish.reason}"' if wish.reason else ""
    return f"{what}{where}{who}{why}."


def deadline_words(drain: InstanceDrain, now_unix_s: float) -> str:
    """Says what happens when to what is left."""
    at = drain.wish.deadline_unix_s
    if at is None:
        return "none"
    policy = LEFTOVER_WORDS[drain.wish.leftover]
    if at > now_unix_s:
        return f"in {short_time(at - now_unix_s)}, then {policy}"
    return f"passed {short_time(now_unix_s - at)} ago: {policy}"


def progress_words(drain: InstanceDrain) -> str:
    """Returns one line of how far an instance is."""
    if drain.is_safe:
        return f"{drain.instance} {drain.state}. {safe_words(drain.verified_unix_s)}"
    progress = drain.progress
    if not drain.is_leaving or progress is None or not drain.state:
        # A state's own words begin with it.
        is_told = not drain.state or drain.why_not_safe.startswith(drain.state)
        state = "" if is_told else f" {drain.state}"
        return f"{drain.instance}{state}: {drain.why_not_safe}"
    left = progress.left if drain.left_total is None else drain.left_total
    parts = [f"{left} left" if left else "empty, being verified"]
    parts += [f"{progress.moving} moving", f"{progress.moved} moved"]
    parts.append(f"{progress.ended} ended by themselves")
    if progress.estimate_s is not None and left:
        parts.append(f"about {short_time(progress.estimate_s)}")
    if progress.obstacle and left:
        parts.append(f"cannot move: {progress.obstacle}")
    return f"{drain.instance} {drain.state}: {', '.join(parts)}"


def node_words(node: NodeDrain) -> str:
    """Returns one line of how far a node is."""
    if node.is_safe:
        count = plural(len(node.instances), "instance")
        return f"{node.node} is empty: {count}, all verified. Safe to switch off."
    done = sum(i.is_safe for i in node.instances)
    left = f", {plural(node.left, 'request')} left" if node.left else ""
    return f"{node.node}: {done} of {plural(len(node.instances), 'instance')} safe{left}"
