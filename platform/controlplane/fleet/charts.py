"""Points of the charts over time: from the pool's samples, and live from the rows. Pure.

Up to `LINES_MAX` instances each have a line; above, the pool is shown by its spread, since neither
a reader nor a browser can follow 500 lines.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from controlplane.fleet.picture import InstanceRow, in_order, is_stale
from engine_pool.types import FleetSample, InstanceSample

LINES_MAX: Final = 16
SPREAD: Final = ("p10", "median", "p90", "least free")
HISTORY_S: Final = 600
GAP_S: Final = 5.0
"""Two samples further apart than this have no rate and no line between them."""


class ChartPoint(NamedTuple):
    """One second of the charts. None: nobody reported, which is drawn as a gap."""

    series: tuple[str, ...]
    """Names of the freeness chart's lines."""
    at_unix_s: float
    freeness: tuple[float | None, ...]
    """Decode steps, one a line."""
    used_percent: float | None
    virtual_percent: float | None
    used_max_percent: float | None
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None


def series_names(rows: Mapping[str, InstanceRow]) -> tuple[str, ...]:
    """Names the lines of the freeness chart."""
    names = tuple(in_order(dict(rows)))
    return names if len(names) <= LINES_MAX else SPREAD


def live_point(
    rows: Mapping[str, InstanceRow],
    names: Sequence[str],
    output_tokens_per_s: float | None,
    prompt_tokens_per_s: float | None,
    now_unix_s: float,
) -> ChartPoint:
    """Returns the point of now."""
    fresh = {n: r for n, r in rows.items() if r.capacity_tokens and not is_stale(r, now_unix_s)}
    values = {n: r.freeness for n, r in fresh.items() if isinstance(r.freeness, float)}
    used = [(r.used_tokens or 0, r.capacity_tokens or 0) for r in fresh.values()]
    virtual = [(r.virtual_tokens or 0, r.capacity_tokens or 0) for r in fresh.values()]
    return ChartPoint(
        tuple(names),
        round(now_unix_s),
        _lines(values, names),
        _share(used),
        _share(virtual),
        _largest(used),
        output_tokens_per_s,
        prompt_tokens_per_s,
    )


def points_of(
    samples: Sequence[FleetSample], names: Sequence[str], capacities: Mapping[str, int]
) -> list[ChartPoint]:
    """Turns the pool's samples into points. `capacities`: KV tokens of the instances known now."""
    points = []
    before: FleetSample | None = None
    for sample in samples:
        values = {
            str(n): i.freeness_tokens
            for n, i in sample.instances.items()
            if i.freeness_tokens is not None
        }
        points.append(
            ChartPoint(
                tuple(names),
                round(sample.at_unix_s),
                _lines(values, names),
                _share(_pairs(sample.instances, capacities, "used_tokens")),
                _share(_pairs(sample.instances, capacities, "virtual_tokens")),
                _largest(_pairs(sample.instances, capacities, "used_tokens")),
                _rate(before, sample, "output_tokens_total"),
                _rate(before, sample, "prompt_tokens_total"),
            )
        )
        before = sample
    return points


def _lines(values: Mapping[str, float], names: Sequence[str]) -> tuple[float | None, ...]:
    if tuple(names) != SPREAD:
        return tuple(_rounded(values.get(name)) for name in names)
    ordered = sorted(values.values())
    if not ordered:
        return (None,) * len(SPREAD)
    last = len(ordered) - 1
    return tuple(_rounded(ordered[round(last * share)]) for share in (0.1, 0.5, 0.9, 0.0))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _pairs(
    instances: Mapping[str, InstanceSample], capacities: Mapping[str, int], name: str
) -> list[tuple[int, int]]:
    return [
        (value, capacities[instance])
        for instance, sample in instances.items()
        if instance in capacities and (value := getattr(sample, name)) is not None
    ]


def _share(pairs: Sequence[tuple[int, int]]) -> float | None:
    whole = sum(capacity for _, capacity in pairs)
    return round(100 * sum(part for part, _ in pairs) / whole, 1) if whole else None


def _largest(pairs: Sequence[tuple[int, int]]) -> float | None:
    shares = [100 * part / capacity for part, capacity in pairs if capacity]
    return round(max(shares), 1) if shares else None


def _rate(before: FleetSample | None, sample: FleetSample, name: str) -> float | None:
    if before is None:
        return None
    past_s = sample.at_unix_s - before.at_unix_s
    grown = int(getattr(sample, name)) - int(getattr(before, name))
    # Totals fall when an instance starts anew; that second has no rate.
    return round(grown / past_s, 1) if 0 < past_s <= GAP_S and grown >= 0 else None
