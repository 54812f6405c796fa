"""`manage.py drain`: what it prints, and its exit codes, on made-up instances."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import redis
from django.core.management import call_command

from controlplane.audit.models import AuditEntry
from controlplane.fleet import fleet_now, publishing
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.management.commands import drain
from controlplane.fleet.models import Pool, WantedInstance, WantedNode
from engine_pool.types import InstanceState
from tests.controlplane import drain_world as world

pytestmark = pytest.mark.django_db


@dataclass
class Shell:
    """Runs the command; each look at the pool sees the next of `looks`, the last one for ever."""

    looks: list[Callable[[], FleetNow]] = field(default_factory=list)
    slept: int = 0
    on_sleep: Callable[[], object] = lambda: None
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    def look(self) -> FleetNow:
        made = self.looks[min(self.slept, len(self.looks) - 1)]()
        # Time passes at once here: what the pool says is later than what was asked for.
        later = {pool: at + 60 for pool, at in made.pool_seen_unix_s.items()}
        return replace(made, pool_seen_unix_s=later)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.on_sleep()

    def __call__(self, *arguments: str) -> int:
        with pytest.raises(SystemExit) as end:
            call_command("drain", *arguments, stdout=self.out, stderr=self.err)
        assert isinstance(end.value.code, int)
        return end.value.code


def serving() -> FleetNow:
    return world.fleet([world.status(1), world.status(2), world.status(3)])


def draining() -> FleetNow:
    progress = world.progress(3, moving=2, estimate_s=2.0)
    one = world.status(1, state=InstanceState.DRAINING, wanted="drained", drain=progress)
    return world.fleet([one, world.status(2), world.status(3)], [world.load(1)])


def drained() -> FleetNow:
    report = replace(world.load(1, running=0, waiting=0), used_tokens=0)
    return world.fleet([world.drained(1), world.status(2), world.status(3)], [report])


@pytest.fixture
def shell(store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch) -> Shell:
    Pool.objects.create(name="default", served_model_name="tiny", instances=3)
    made = Shell([serving])
    monkeypatch.setattr(publishing, "_store", lambda: store)
    monkeypatch.setattr(fleet_now, "fleet_now", made.look)
    monkeypatch.setattr(drain, "enter_installation", lambda: None)
    monkeypatch.setattr(drain.time, "sleep", made.sleep)
    return made


def test_it_asks_for_a_drain_and_ends(shell: Shell) -> None:
    assert shell("i-01", "--reason", "new disks", "--deadline", "60", "--leftover", "replay") == 0
    row = WantedInstance.objects.get()
    assert (row.wanted, row.leftover, row.reason) == ("drained", "replay", "new disks")
    assert row.by.startswith("command:")
    assert AuditEntry.objects.get().action == "instance_drain"


def test_waiting_ends_with_the_proof(shell: Shell) -> None:
    shell.looks = [serving, draining, draining, drained]
    assert shell("i-01", "--wait") == 0
    lines = shell.out.getvalue().splitlines()
    assert lines[1] == "i-01 draining: 3 left, 2 moving, 5 moved, 1 ended by themselves, about 2 s"
    assert lines[2].startswith("i-01 drained. Safe to stop. Verified empty at")
    assert len(lines) == 3


def test_when_the_time_is_up_the_code_is_1_and_the_drain_goes_on(shell: Shell) -> None:
    shell.looks = [draining]
    assert shell("i-01", "--wait", "--timeout", "0.01") == 1
    assert "It goes on" in shell.err.getvalue()
    assert WantedInstance.objects.get().wanted == "drained"


def test_a_release_meanwhile_is_code_3(shell: Shell) -> None:
    shell.looks = [draining]
    shell.on_sleep = WantedInstance.objects.all().delete
    assert shell("i-01", "--wait") == 3
    assert "released meanwhile" in shell.err.getvalue()


def test_a_store_that_is_away_for_a_while_does_not_end_the_wait(shell: Shell) -> None:
    shell.looks = [serving, lambda: world.fleet(is_known=False), drained]
    assert shell("i-01", "--wait") == 0
    assert "the store does not answer" in shell.out.getvalue()


def test_a_node_is_waited_for_with_all_of_its_instances(shell: Shell) -> None:
    def done() -> FleetNow:
        two = [replace(world.load(n, running=0, waiting=0), used_tokens=0) for n in (1, 2)]
        return world.fleet([world.drained(1), world.drained(2), world.status(3)], two)

    shell.looks = [serving, drained, done]
    assert shell("--node", "gpu-a", "--stop", "--wait") == 0
    assert WantedNode.objects.get().wanted == "stopped"
    assert "gpu-a is empty: 2 instances, all verified. Safe to switch off." in shell.out.getvalue()


def test_it_releases(shell: Shell) -> None:
    shell("i-01")
    shell("--node", "gpu-b", "--force")
    assert shell("i-01", "--release") == 0
    assert shell("--node", "gpu-b", "--release") == 0
    assert not WantedInstance.objects.exists()
    assert not WantedNode.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param([], "Name an instance", id="nothing"),
        pytest.param(["i-01", "--node", "gpu-a"], "Name an instance", id="both"),
        pytest.param(["i-09"], "There is no instance i-09", id="unknown instance"),
        pytest.param(["--node", "gpu-z"], "There is no node gpu-z", id="unknown node"),
        pytest.param(["i-01", "--pool", "other"], "pool: i-01 is of pool default", id="pool"),
        pytest.param(["--node", "gpu-a", "--pool", "default"], "--pool:", id="pool of a node"),
        pytest.param(["i-01", "--timeout", "5"], "--timeout: needs --wait", id="no wait"),
        pytest.param(["i-01", "--wait", "--timeout", "0"], "--timeout: must", id="no time"),
        pytest.param(["i-01", "--wait", "--timeout", "nan"], "--timeout: must", id="nan"),
        pytest.param(["i-01", "--deadline", "-1"], "deadline_s: must", id="deadline"),
        pytest.param(["i-01", "--leftover", "end"], "deadline_s: end happens", id="leftover"),
        pytest.param(["i-01", "--release", "--wait"], "--release:", id="release and wait"),
    ],
)
def test_wrong_input_is_code_2_and_changes_nothing(
    shell: Shell, arguments: list[str], words: str
) -> None:
    assert shell(*arguments) == 2
    assert words in shell.err.getvalue()
    assert not WantedInstance.objects.exists()
    assert not WantedNode.objects.exists()


def test_the_last_instance_needs_force(shell: Shell) -> None:
    shell.looks = [lambda: world.fleet([world.status(1)])]
    assert shell("i-01") == 2
    assert "It is the last instance of pool default" in shell.err.getvalue()
    assert shell("i-01", "--force") == 0
