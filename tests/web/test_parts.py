"""Which part is away, told apart, and what stands still without it."""

from dataclasses import replace

import pytest

from controlplane.fleet import parts
from controlplane.fleet.parts import Part, Probes, scaling_stands_still, strip_of
from controlplane.tenants.key_cache import STALE_MAX_S

NOW_S = 1_000_000.0
LONG_AGO_S = NOW_S - 120
ALL_WELL = Probes(
    True, NOW_S, True, NOW_S, NOW_S, NOW_S, NOW_S, worker_alive_unix_s=NOW_S, ray_answers=True,
    ray_since_unix_s=NOW_S, database_reads=True,
)  # fmt: skip
NEVER_HEARD = replace(
    ALL_WELL, pool_sample_unix_s=None, worker_heartbeat_unix_s=None, worker_alive_unix_s=None
)


def judged(probes: Probes) -> dict[str, Part]:
    return {part.key: part for part in parts.parts_of(probes, {}, 0, NOW_S)}


def away(probes: Probes) -> set[str]:
    return {key for key, part in judged(probes).items() if part.answers is False}


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        pytest.param(ALL_WELL, set(), id="none"),
        pytest.param(replace(ALL_WELL, store_answers=False), {"store"}, id="store"),
        pytest.param(replace(ALL_WELL, database_answers=False), {"database"}, id="database"),
        pytest.param(replace(ALL_WELL, database_answers=None), set(), id="not asked yet"),
        pytest.param(
            replace(ALL_WELL, worker_alive_unix_s=LONG_AGO_S, worker_heartbeat_unix_s=LONG_AGO_S),
            {"worker"},
            id="worker: what beat does is not known without it",
        ),
        pytest.param(
            replace(ALL_WELL, worker_heartbeat_unix_s=LONG_AGO_S), {"beat"}, id="beat alone"
        ),
        pytest.param(
            replace(ALL_WELL, worker_alive_unix_s=None), set(), id="a worker that runs tasks lives"
        ),
        pytest.param(replace(ALL_WELL, ray_answers=False), {"ray"}, id="Ray"),
        pytest.param(replace(ALL_WELL, ray_answers=None), set(), id="Ray not joined yet"),
        pytest.param(replace(ALL_WELL, pool_sample_unix_s=LONG_AGO_S), {"pool"}, id="pool process"),
        pytest.param(NEVER_HEARD, set(), id="nothing heard yet, just begun"),
        pytest.param(
            replace(NEVER_HEARD, observed_since_unix_s=LONG_AGO_S),
            set(),
            id="the store has just begun anew",
        ),
        pytest.param(
            replace(NEVER_HEARD, observed_since_unix_s=LONG_AGO_S, store_since_unix_s=LONG_AGO_S),
            {"pool", "worker"},
            id="never heard for long",
        ),
    ],
)
def test_each_part_is_told_apart(probes: Probes, expected: set[str]) -> None:
    assert away(probes) == expected


@pytest.mark.parametrize("key", ["store", "database", "worker", "beat", "ray", "pool"])
def test_every_part_says_what_works_and_what_to_do(key: str) -> None:
    part = judged(ALL_WELL)[key]
    assert part.headline
    assert part.still_works.endswith(".")
    assert part.what_to_do.endswith(".")


def test_the_strip_names_who_answers_while_the_database_does_not() -> None:
    found = tuple(judged(replace(ALL_WELL, database_answers=False)).values())
    strip = strip_of(found, {}, 0, NOW_S)
    assert strip.headline == "The database does not answer"
    assert f"{STALE_MAX_S / 60:.0f} minutes" in strip.detail
    assert strip.answering == "Store, pool process, Ray, Celery, 0 of 0 engines answer"


@pytest.mark.parametrize(
    ("probes", "why"),
    [
        (ALL_WELL, ""),
        (replace(ALL_WELL, worker_heartbeat_unix_s=LONG_AGO_S), "Celery's beat gives out no tasks"),
        (
            replace(ALL_WELL, worker_alive_unix_s=None, worker_heartbeat_unix_s=LONG_AGO_S),
            "Celery does not answer",
        ),
        (replace(ALL_WELL, database_answers=False), "The database does not answer"),
        (replace(ALL_WELL, store_answers=False), "The store does not answer"),
        (replace(ALL_WELL, pool_sample_unix_s=LONG_AGO_S), "The pool process does not answer"),
    ],
)
def test_scaling_says_why_it_stands_still(probes: Probes, why: str) -> None:
    said = scaling_stands_still(judged(probes).values())
    assert said == (f"{why}, so the number of instances stays as it is." if why else "")
