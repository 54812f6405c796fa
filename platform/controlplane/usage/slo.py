"""How attainment, error budget and burn rate are computed. Pure.

From Google's SRE workbook, chapters 2 (Implementing SLOs) and 5 (Alerting on SLOs):
https://sre.google/workbook/implementing-slos/ and https://sre.google/workbook/alerting-on-slos/

- valid events: a tenant's requests of a class that have a verdict (gateway/verdicts.py);
- good events: those that met all the targets they had; all others are missed;
- attainment = good / valid over the SLO's window, which rolls: the last `window_days`;
- error budget = 1 - objective, as a share of the valid events: so many may be missed;
- budget left = 1 - missed / ((1 - objective) x valid): 1 untouched, 0 used up, below 0 overspent;
- burn rate over a time = (missed / valid in that time) / (1 - objective): at 1 the budget is used
  up exactly when the window ends, at 14.4 in a 14.4th of it;
- alerts: a burn rate over a long and over a short time at once (ch. 5, section 6).

With fewer than REQUESTS_MIN valid events nothing is said (None): one slow request of two is no
attainment of 50 %, and none of two is not 100 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

REQUESTS_MIN: Final = 30
"""Valid events below which a share says too little: with 30, one miss is 3 %."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Valid events of a time, and the missed ones among them."""

    requests: int = 0
    missed: int = 0

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.requests + other.requests, self.missed + other.missed)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Fires when so much of the budget would be used in the long time, and still in the short."""

    severity: Literal["page", "ticket"]
    budget_share: float
    long_h: float
    long: str
    short: str


ALERT_RULES: Final = (
    AlertRule("page", 0.02, 1, "1h", "5m"),
    AlertRule("page", 0.05, 6, "6h", "30m"),
    AlertRule("ticket", 0.10, 72, "3d", "6h"),
)
"""The workbook's table 5-8. For a window of 30 days the thresholds are 14.4, 6 and 1."""


def attainment(counted: Counted) -> float | None:
    """Returns good / valid, None with too few to say."""
    if counted.requests < REQUESTS_MIN:
        return None
    return (counted.requests - counted.missed) / counted.requests


def budget_left(counted: Counted, objective: float) -> float | None:
    """Returns 1 - missed / ((1 - objective) x valid), None with too few to say."""
    if counted.requests < REQUESTS_MIN:
        return None
    return 1 - counted.missed / ((1 - objective) * counted.requests)


def burn_rate(counted: Counted, objective: float) -> float | None:
    """Returns (missed / valid) / (1 - objective), None with too few to say."""
    if counted.requests < REQUESTS_MIN:
        return None
    return counted.missed / counted.requests / (1 - objective)


def threshold(rule: AlertRule, window_days: int) -> float:
    """Returns the burn rate that uses the rule's share of the budget in its long time.

    share x window / long time: 0.02 x 720 h / 1 h = 14.4.
    """
    return rule.budget_share * window_days * 24 / rule.long_h


def alert(burns: Mapping[str, float | None], window_days: int) -> Literal["page", "ticket", ""]:
    """Returns the severest alert that fires. `burns`: by the names in ALERT_RULES."""
    for rule in ALERT_RULES:
        limit = threshold(rule, window_days)
        rates = (burns.get(rule.long), burns.get(rule.short))
        if all(rate is not None and rate > limit for rate in rates):
            return rule.severity
    return ""
