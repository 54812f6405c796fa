"""The installations that the rebalancing benchmark loads: everything that `make up` starts.

One with rebalancing and one without stand ready at the same time; only one is loaded at a time, so
rounds can alternate without restarts, and what the idle one costs, it costs both.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from benchmarks.rebalance_load import Door
from benchmarks.servers import ROOT
from engine_pool import view
from engine_pool.move_facts import FACTS
from engine_pool.rebalancer import ASKED_BY
from engine_pool.types import PriorityClass
from migration.report import MoveReport, MoveState
from tests.integration.installation import Installation, wait_for

IDLE_TIMEOUT_S: Final = 120.0
KEY_TIMEOUT_S: Final = 60.0
SELF_TEST_TIMEOUT_S: Final = 120.0
REPORTS_S: Final = 0.5
"""After the last answer: load reports and the ends of moves come within so long."""
MAKE_KEY: Final = (
    "from controlplane.tenants.first_login import SETUP\n"
    "from controlplane.tenants.services import key_create, tenant_create\n"
    "tenant = tenant_create(access=SETUP, name='{slug}', slug='{slug}',"
    " highest_class='{priority_class}', default_class='{priority_class}')\n"
    "print('KEY', key_create(access=SETUP, tenant=tenant, name='benchmark')[1])\n"
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What all installations of a run have in common."""

    model: Path
    kv_cache_gib: float
    max_model_len: int
    max_running: int
    instances: int = 2


@dataclass(frozen=True, slots=True)
class Counts:
    """What the pool has done since its start."""

    preemptions: int
    moves: int
    """Of the rebalancer, committed."""
    aborted: int
    """Of the rebalancer; the requests went on where they were."""

    def since(self, before: "Counts") -> "Counts":
        return Counts(
            self.preemptions - before.preemptions,
            self.moves - before.moves,
            self.aborted - before.aborted,
        )


class Pool:
    """One installation that stands ready."""

    def __init__(self, name: str, installation: Installation, door: Door) -> None:
        self.name = name
        self.door = door
        self._installation = installation
        self._ended: dict[str, MoveReport] = {}

    def counts(self) -> Counts:
        """Looks at the reports. Call it when the pool is idle."""
        time.sleep(REPORTS_S)
        store = self._installation.store()
        # The stream is trimmed, so what has been seen is kept.
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", store.xrange(view.MOVES_ENDED))
        for _, fields in entries:
            move = view.decode_move(fields[b"m"])
            if move.asked_by == ASKED_BY:
                self._ended[move.migration_id] = move
        states = [move.state for move in self._ended.values()]
        return Counts(
            preemptions=sum(load.preemptions_total for load in self._installation.loads()),
            moves=states.count(MoveState.COMMITTED),
            aborted=states.count(MoveState.ABORTED),
        )

    def capacity_tokens(self) -> int:
        """Returns the KV memory of one engine; they are alike."""
        return self._installation.loads()[0].capacity_tokens

    def new_key(self, slug: str, priority_class: PriorityClass) -> str:
        """Makes a tenant and returns a key of it. Raises: RuntimeError."""
        return _new_key(self._installation, slug, priority_class)

    def wait_idle(self) -> None:
        """Raises: RuntimeError when it goes on working."""
        pool = self._installation
        with _in_words():
            wait_for(
                lambda: pool.running() + pool.waiting() == 0,
                f"{self.name} has no work",
                IDLE_TIMEOUT_S,
            )


@contextlib.contextmanager
def started(name: str, sizes: Sizes, **settings: str) -> Iterator[Pool]:
    """Starts an installation and ends it. Raises: RuntimeError when it does not come up."""
    with tempfile.TemporaryDirectory(prefix=f"ferry-{name}-") as folder:
        installation = Installation(
            Path(folder),
            FERRY_INSTANCES=str(sizes.instances),
            FERRY_MODEL=str(sizes.model),
            FERRY_KV_CACHE_GIB=f"{sizes.kv_cache_gib:.6f}",
            FERRY_MAX_MODEL_LEN=str(sizes.max_model_len),
            FERRY_MAX_RUNNING=str(sizes.max_running),
            **settings,
        )
        try:
            with _in_words():
                installation.wait_ready()
                store = installation.store()
                # Until it has passed nothing moves by itself, and it takes the cores for seconds.
                wait_for(
                    lambda: sizes.instances < 2 or store.hexists(FACTS, "self_test"),
                    "the self-test of moves",
                    SELF_TEST_TIMEOUT_S,
                )
            keys = {
                PriorityClass.NORMAL: installation.login["api_key"],
                PriorityClass.HIGH: _new_key(installation, "high", PriorityClass.HIGH),
            }
            yield Pool(name, installation, Door(f"{installation.url}/v1", sizes.model.name, keys))
        finally:
            installation.stop()


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Makes an error for people of what is a failed test elsewhere."""
    try:
        yield
    except AssertionError as error:
        raise RuntimeError(str(error)) from None


def _new_key(installation: Installation, slug: str, priority_class: PriorityClass) -> str:
    code = MAKE_KEY.format(slug=slug, priority_class=priority_class.value)
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", code],
        cwd=ROOT,
        env=installation.environ | installation.state.environ,
        capture_output=True,
        text=True,
        timeout=KEY_TIMEOUT_S,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("KEY "):
            return line.removeprefix("KEY ")
    raise RuntimeError(f"no key of the tenant {slug} could be made:\n{done.stderr[-2000:]}")
