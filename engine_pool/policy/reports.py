"""Which instances a decision may use, as of the reports that there are: only fresh ones count.

A report of another incarnation than the status names is a dead predecessor's.
"""

from engine_pool.policy.standing import Standing, standing_of
from engine_pool.types import InFlight, InstanceName, InstanceState, PoolView

REPORT_MAX_AGE_S = 5.0
"""Older reports do not count. Engines report every 100 ms; the pages call a report stale after 5
s, too."""


def pool_standings(
    view: PoolView, now_unix_s: float, report_max_age_s: float = REPORT_MAX_AGE_S
) -> list[Standing]:
    """Sums up every fresh report of the pool, with the ledger; open are the serving instances."""
    loads = {load.instance: load for load in view.loads}
    sent: dict[InstanceName, list[InFlight]] = {}
    for entry in view.in_flight:
        sent.setdefault(entry.instance, []).append(entry)
    found = []
    for status in view.statuses:
        load = loads.get(status.instance)
        if load is None or load.incarnation != status.incarnation:
            continue
        if now_unix_s - load.at_unix_s > report_max_age_s:
            continue
        found.append(standing_of(load, status.state, sent.get(status.instance, ())))
    return found


def why_nobody(
    view: PoolView, now_unix_s: float, report_max_age_s: float = REPORT_MAX_AGE_S
) -> str:
    """Says why no instance is open."""
    if not view.statuses:
        return "the pool has no instance"
    states = {s.state for s in view.statuses}
    if InstanceState.SERVING not in states:
        return f"none of {len(view.statuses)} instances serves ({', '.join(sorted(states))})"
    ages_s = [now_unix_s - load.at_unix_s for load in view.loads]
    newest = f"the newest is {min(ages_s):.1f} s old" if ages_s else "there is none"
    return f"no serving instance has a report younger than {report_max_age_s:g} s ({newest})"
