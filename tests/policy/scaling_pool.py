"""Pools on which scaling decides, and short ways to ask it."""

from engine_pool.policy.scaling import decide
from engine_pool.policy.scaling_facts import Picture, ScalingState
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from tests.policy.make import NORMAL, standing

RULE = ScalingRule(is_on=True, max_instances=4, grow_after_s=10.0, shrink_after_s=30.0)
"""160 to 960 steps; 10 s under it, 30 s over it; 1 to 4 instances."""
PLAIN = HeadroomRule({})
NOW_S = 1000.0
UNDER = ScalingState(under_since_s=NOW_S - 10)
OVER = ScalingState(over_since_s=NOW_S - 30, spare_since_s=NOW_S - 30)


def steps(name, free_steps, requests=10, **more):
    """An instance whose batch of `requests` can take `free_steps` steps."""
    used = 16_000 - free_steps * requests
    return standing(name, {NORMAL: [0] * requests}, used=used, **more)


def check(
    pool, *, starting=(), silent=0, rule=RULE, headroom=PLAIN, state=None, now_s=NOW_S, **more
):
    """All that drain do so by the loop's own wish."""
    draining = [s.instance for s in pool if s.is_draining]
    more = {"undrainable": draining} | more
    decision, after = decide(
        Picture(pool, starting, silent, **more),
        rule=rule,
        headroom=headroom,
        state=state or ScalingState(),
        now_s=now_s,
    )
    return decision, after.after(decision, now_s)


def change(decision):
    return decision.add, decision.drain, decision.undrain


LOADED = [steps("i-01", 100), steps("i-02", 120)]
LIGHT = [steps("i-01", 1200, requests=13), steps("i-02", 1200, requests=12)]
"""Without the second one 14,000 free tokens are left for 25 requests: the middle of the band."""
DRAINING = steps("i-03", 1200, requests=3, is_draining=True)
STAY = (0, None, None)
