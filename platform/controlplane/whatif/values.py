"""What the parts of a what-if run hand to each other, and how one ends that has no result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Scenario = dict[str, Any]
"""Sections by name, as in the simulator's files; checked by the simulator."""
Report = dict[str, Any]
"""What the simulator's `Report.to_dict` gives."""
GoOn = Callable[[float], bool]
"""Takes the share that is done, 0 to 1; False: stop."""


class WhatIfRefused(Exception):
    """A wish that cannot be carried out. `field`: what to change, empty if it is no field's."""

    def __init__(self, message: str, *, field: str = "", code: str = "invalid") -> None:
        super().__init__(message)
        self.field = field
        self.code = code
        """invalid, queue_full, or ended."""


class RunStopped(Exception):
    """The run was to stop, and did."""


class RunFailed(Exception):
    """The simulation has no result; the message is for people."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants simulated."""

    name: str
    scenario: Scenario
    baseline: Scenario | None = None
    baseline_label: str = ""


class Simulate(Protocol):
    """Carries out one scenario.

    Calls `go_on` about once a second. Raises: RunStopped when that said so; RunFailed.
    """

    def __call__(self, scenario: Scenario, go_on: GoOn) -> Report: ...
