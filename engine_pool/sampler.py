"""One look at the whole pool a second, for the charts. A missing report is a gap, never a zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_pool.policy.freeness import breakdown
from engine_pool.policy.settings import HeadroomRule
from engine_pool.types import (
    FleetSample,
    InstanceLoad,
    InstanceName,
    InstanceSample,
    InstanceStatus,
)

FRESH_S = 5.0
"""Reports of this age are still shown as now; the pages call older ones stale."""
_GAP = InstanceSample(None, None, None, None, None)


@dataclass(slots=True)
class Sampler:
    """Makes samples, and adds up the counters over all incarnations: they never fall."""

    headroom: HeadroomRule = field(default_factory=HeadroomRule)
    """The pool's, so that the charts show the freeness that decisions compare."""
    _counters: dict[tuple[InstanceName, str], tuple[int, int, int]] = field(default_factory=dict)

    def sample(
        self, statuses: Sequence[InstanceStatus], loads: Sequence[InstanceLoad], now_unix_s: float
    ) -> FleetSample:
        """Makes the sample of now from what the view shows."""
        by_name = {load.instance: load for load in loads}
        for load in loads:
            counts = (load.output_tokens_total, load.prompt_tokens_total, load.preemptions_total)
            self._counters[load.instance, load.incarnation] = counts
        output, prompt, preemptions = (sum(c[i] for c in self._counters.values()) for i in range(3))
        return FleetSample(
            at_unix_s=now_unix_s,
            instances={
                s.instance: _instance(s, by_name.get(s.instance), now_unix_s, self.headroom)
                for s in statuses
            },
            output_tokens_total=output,
            prompt_tokens_total=prompt,
            preemptions_total=preemptions,
        )


def _instance(
    status: InstanceStatus, load: InstanceLoad | None, now_unix_s: float, headroom: HeadroomRule
) -> InstanceSample:
    if load is None or load.incarnation != status.incarnation:
        return _GAP
    if now_unix_s - load.at_unix_s > FRESH_S:
        return _GAP
    parts = breakdown(load, status.state, headroom)
    is_finite = math.isfinite(parts.virtual_tokens)
    return InstanceSample(
        freeness_tokens=parts.freeness_or_none,
        used_tokens=parts.used_tokens,
        virtual_tokens=int(parts.virtual_tokens) if is_finite else None,
        running=parts.running,
        waiting=parts.waiting,
    )
