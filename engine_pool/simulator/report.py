"""The outcome of a simulated run, as numbers that can be written as JSON.

Names end with their units. A number that nothing was there for is None.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine_pool.simulator.metrics import Sample, mean, percentile
from engine_pool.simulator.move_record import Move
from engine_pool.simulator.sim_request import SimRequest

Numbers = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Report:
    """What `run` returns."""

    scenario: dict[str, object]
    """Everything that the run depended on."""
    summary: Numbers
    by_class: dict[str, Numbers]
    series: dict[str, list[float | None]]
    """A list a line of the charts, all of one length."""
    moves: dict[str, object]
    wall_s: float
    """How long the run took here."""

    def to_dict(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "summary": self.summary,
            "by_class": self.by_class,
            "series": self.series,
            "moves": self.moves,
            "wall_s": self.wall_s,
        }


def request_numbers(requests: Sequence[SimRequest]) -> Numbers:
    """Sums up what happened to some requests, all finished."""
    prefill_ms: list[float] = []
    latency_ms: list[float] = []
    decode_ms: list[float] = []
    for r in requests:
        assert r.first_token_s is not None, "every request has finished"
        assert r.finish_s is not None, "every request has finished"
        prefill_ms.append((r.first_token_s - r.arrival_s) * 1000)
        latency_ms.append((r.finish_s - r.arrival_s) * 1000)
        if r.output_tokens > 1:
            decode_ms.append((r.finish_s - r.first_token_s) * 1000 / (r.output_tokens - 1))
    return {
        "requests": len(requests),
        "prefill_mean_ms": mean(prefill_ms),
        "prefill_p50_ms": percentile(prefill_ms, 50),
        "prefill_p99_ms": percentile(prefill_ms, 99),
        "request_mean_ms": mean(latency_ms),
        "request_p50_ms": percentile(latency_ms, 50),
        "request_p99_ms": percentile(latency_ms, 99),
        "decode_mean_ms": mean(decode_ms),
        "decode_p50_ms": percentile(decode_ms, 50),
        "decode_p99_ms": percentile(decode_ms, 99),
        "preemptions": sum(r.preemptions for r in requests),
        "preempted_share": mean([float(r.preemptions > 0) for r in requests]),
        "preemption_loss_mean_ms": mean([r.lost_s * 1000 for r in requests]),
        "requests_moved": sum(r.moves > 0 for r in requests),
        "move_downtime_mean_ms": mean([1000 * t for r in requests for t in r.downtimes_s]),
    }


def by_class(requests: Sequence[SimRequest]) -> dict[str, Numbers]:
    """Sums up each class that there were requests of."""
    classes = sorted({r.priority_class for r in requests}, key=lambda c: c.rank)
    return {
        c.value: request_numbers([r for r in requests if r.priority_class is c]) for c in classes
    }


def pool_numbers(
    samples: Sequence[Sample], *, duration_s: float, instance_seconds: float
) -> Numbers:
    """Sums up the pool until the last arrival; `samples` are evenly spaced until then."""
    return {
        "arrivals_s": duration_s,
        "memory_load_mean": mean([1 - s.free_share for s in samples]),
        "fragmentation": mean([s.fragmentation for s in samples]),
        "fragmentation_nowhere": mean([s.fragmentation_nowhere for s in samples]),
        "running_mean": mean([s.running for s in samples]),
        "waiting_mean": mean([s.waiting for s in samples]),
        "instance_seconds": instance_seconds,
        "instances_mean": instance_seconds / duration_s if duration_s else None,
    }


def move_numbers(moves: Sequence[Move]) -> dict[str, object]:
    """Sums up the moves. Downtime: from a request's last token at the source to its first at the
    destination; pause: until the destination has it, without the wait for its next step."""
    committed = [m for m in moves if m.adopted_s is not None]
    pauses_ms = [
        (m.adopted_s - m.parked_s) * 1000
        for m in committed
        if m.adopted_s is not None and m.parked_s is not None and m.last_blocks
    ]
    # In order of their first moves: a set's order would make sums differ from run to run.
    moved = dict.fromkeys(m.request for m in moves)
    downtimes_ms = [downtime_s * 1000 for r in moved for downtime_s in r.downtimes_s]
    return {
        "started": len(moves),
        "committed": len(committed),
        "committed_queued": sum(not m.last_blocks for m in committed),
        "aborted": dict(sorted(Counter(m.abort_code for m in moves if m.abort_code).items())),
        "copies_mean": mean([float(m.copies + 1) for m in committed if m.last_blocks]),
        "pause_mean_ms": mean(pauses_ms),
        "pause_p99_ms": percentile(pauses_ms, 99),
        "downtime_mean_ms": mean(downtimes_ms),
        "downtime_p99_ms": percentile(downtimes_ms, 99),
    }


def readable(found: Report) -> list[str]:
    """Writes the main numbers as lines for people."""
    s = found.summary
    lines = [
        f"{found.scenario['name']} (seed {found.scenario['seed']}): {_n(s['requests'])} requests, "
        f"{_n(s['instances_mean'], 1)} instances on average, memory load "
        f"{_percent(s['memory_load_mean'])}, {found.wall_s:.1f} s here",
        f"{'':12}{'prefill ms':>30}{'request ms':>22}{'decode ms/token':>18}{'preempted':>20}",
        f"{'':12}{'mean':>10}{'p50':>10}{'p99':>10}{'mean':>11}{'p99':>11}{'mean':>9}{'p99':>9}"
        f"{'share':>10}{'loss ms':>10}",
        _row("all", s),
    ]
    if len(found.by_class) > 1:
        lines += [_row(name, numbers) for name, numbers in found.by_class.items()]
    moves = found.moves
    aborted = moves["aborted"]
    why = ", ".join(f"{v} {k}" for k, v in aborted.items()) if isinstance(aborted, dict) else ""
    lines.append(
        f"fragmentation {_percent(s['fragmentation'])}; moves: {moves['committed']} committed "
        f"({moves['committed_queued']} of queued requests), aborted: {why or 'none'}"
    )
    return lines


def _row(name: str, numbers: Numbers) -> str:
    return (
        f"{name:12}{_n(numbers['prefill_mean_ms']):>10}{_n(numbers['prefill_p50_ms']):>10}"
        f"{_n(numbers['prefill_p99_ms']):>10}{_n(numbers['request_mean_ms']):>11}"
        f"{_n(numbers['request_p99_ms']):>11}{_n(numbers['decode_mean_ms'], 1):>9}"
        f"{_n(numbers['decode_p99_ms'], 1):>9}{_percent(numbers['preempted_share']):>10}"
        f"{_n(numbers['preemption_loss_mean_ms']):>10}"
    )


def _n(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"
