"""Which runs `benchmarks.paper` makes: mixes, rates, policies, seeds. Rates go by the least-loaded
baseline alone: around each mix's knee, where the median of its P99 prefill is 10 to 100 s."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

INSTANCES: Final = 16
TIME_SCALE: Final = 1.2
"""Steps as long as those of the paper's engine were, relative to the fit of its plots."""
SEEDS: Final = 8
REQUESTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of prompts and outputs, and the rates that are swept."""

    input: str
    output: str
    knee_per_s: float
    """Rate at which the least-loaded baseline begins to fall behind."""

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        return tuple(round(self.knee_per_s * share, 3) for share in SHARES)


SHARES: Final = (0.95, 1.0, 1.05)
"""Of the knee."""
MIXES: Final = {
    "S-S": Mix("S", "S", 38.5),
    "M-M": Mix("M", "M", 7.3),
    "L-L": Mix("L", "L", 2.7),
    "S-L": Mix("S", "L", 3.9),
    "L-S": Mix("L", "S", 17.5),
}

Policy = Mapping[str, Any]
BASELINE: Final[Policy] = {"migration": False}
"""INFaaS++: to the least loaded by the same metric, with the same ledger; no migration."""
OURS: Final[Policy] = {}
"""The product's defaults."""
AT_THE_KNEE: Final[Mapping[str, Policy]] = {
    "paper": {
        "queue": "head",
        "defragments": False,
        "elastic_headroom": False,
        "moves_per_instance": 1,
    },
    "late binding": {"late_binding": True},
    "round robin": {**BASELINE, "dispatch": "round_robin"},
}
"""Llumnix's own rules where they differ from the defaults; an option of the product; and in turn,
whatever the load. At one rate only, to save time."""

PRIORITY_CVS: Final = (2.0, 4.0, 6.0, 8.0)
PRIORITY_RATE_PER_S: Final = 26.0
HIGH_SHARE: Final = 0.1
SCALING_RATES_PER_S: Final = (2.0, 2.4)
SCALING_CVS: Final = (2.0, 4.0)
SCALING_CV_RATE_PER_S: Final = 2.0
COST_BANDS: Final = (
    (80.0, 480.0),
    (120.0, 720.0),
    (160.0, 480.0),
    (160.0, 960.0),
    (240.0, 720.0),
    (240.0, 1440.0),
    (320.0, 960.0),
)
"""Scaling bands, decode steps, that both policies are tried with: what each costs at a P99 is read
off the best of its own."""
COST_RATE_PER_S: Final = 2.0
LEDGERLESS_CV: Final = 6.0
"""Where the classes are compared without the in-flight ledger, too, as the paper did."""


CLASS_OPTIONS: Final[Mapping[str, Policy]] = {
    "no packing": {"packs_classes": False},
    "hard headroom": {"elastic_headroom": False},
    "all headroom lent": {"lent_share": 1.0},
    "late binding": {"late_binding": True},
}
"""Options of the product, compared at one CV with what they change in "ours"."""
OPTIONS_CV: Final = 4.0


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation and what came out."""

    experiment: str
    mix: str
    rate: float
    cv: float
    policy: str
    seed: int
    band_low: float = 0.0
    band_high: float = 0.0
    summary: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    run: Run
    scenario: Mapping[str, Any]


def scenario(
    mix: Mix,
    rate_per_s: float,
    seed: int,
    policy: Policy,
    *,
    requests: int,
    cv: float = 1.0,
    high_share: float = 0.0,
    scaling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns one run's scenario as the simulator reads it."""
    return {
        "name": f"{mix.input}-{mix.output} at {rate_per_s:g}/s",
        "seed": seed,
        "pool": {"instances": INSTANCES},
        "workload": {
            "kind": "lengths",
            "requests": requests,
            "rate_per_s": rate_per_s,
            "cv": cv,
            "input": mix.input,
            "output": mix.output,
            "high_share": high_share,
        },
        "costs": {"time_scale": TIME_SCALE},
        "policy": dict(policy),
        "scaling": dict(scaling or {"enabled": False}),
    }


def serving(seeds: int, requests: int) -> Iterator[Job]:
    """Figures 11 and 12: latencies at a fixed number of instances."""
    for name, mix in MIXES.items():
        for rate in mix.rates_per_s:
            policies = {"baseline": BASELINE, "ours": OURS}
            if rate == mix.knee_per_s:
                policies |= AT_THE_KNEE
            for seed in range(seeds):
                for policy, rules in policies.items():
                    run = Run("serving", name, rate, 1.0, policy, seed)
                    yield Job(run, scenario(mix, rate, seed, rules, requests=requests))


def priorities(seeds: int, requests: int) -> Iterator[Job]:
    """Figure 13: a tenth of high requests among bursts. All with the product's defaults but for
    what the name says."""
    rate = PRIORITY_RATE_PER_S
    for cv in PRIORITY_CVS:
        policies: dict[str, Policy] = {"no classes": {"priorities": False}, "ours": OURS}
        if cv == OPTIONS_CV:
            policies |= CLASS_OPTIONS
        if cv == LEDGERLESS_CV:
            policies["no classes, no ledger"] = {"priorities": False, "ledger": False}
            policies["no ledger"] = {"ledger": False}
        for seed in range(seeds):
            for policy, rules in policies.items():
                run = Run("priorities", "S-S", rate, cv, policy, seed)
                made = scenario(
                    MIXES["S-S"],
                    rate,
                    seed,
                    rules,
                    requests=requests,
                    cv=cv,
                    high_share=HIGH_SHARE,
                )
                yield Job(run, made)


def scaling(seeds: int, requests: int) -> Iterator[Job]:
    """Figures 14 and 15: the number of instances follows the load."""
    default = (160.0, 960.0)
    cases = [("scaling rate", rate, 1.0, default) for rate in SCALING_RATES_PER_S]
    cases += [("scaling cv", SCALING_CV_RATE_PER_S, cv, default) for cv in SCALING_CVS]
    cases += [("cost", COST_RATE_PER_S, 1.0, band) for band in COST_BANDS]
    for experiment, rate, cv, (low, high) in cases:
        band = {"enabled": True, "low_steps": low, "high_steps": high, "survivors_share": 0.0}
        for seed in range(seeds):
            for policy, rules in {"baseline": BASELINE, "ours": OURS}.items():
                run = Run(experiment, "L-L", rate, cv, policy, seed, low, high)
                made = scenario(
                    MIXES["L-L"], rate, seed, rules, requests=requests, cv=cv, scaling=band
                )
                yield Job(run, made)


EXPERIMENTS: Final = {"scaling": scaling, "serving": serving, "priorities": priorities}


def all_jobs(
    seeds: int = SEEDS,
    requests: int = REQUESTS,
    only: str | None = None,
    mixes: Collection[str] = MIXES,
) -> list[Job]:
    """Returns every run of the benchmark, or those of one of its parts and of some mixes."""
    parts = [make for name, make in EXPERIMENTS.items() if only in (None, name)]
    return [job for make in parts for job in make(seeds, requests) if job.run.mix in mixes]
