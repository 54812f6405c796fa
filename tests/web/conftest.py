"""A picture of a made-up pool in place of the process's own, and people who look at it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from playwright.sync_api import Browser, expect, sync_playwright

from controlplane.fleet import observer as observers
from engine_pool.errors import InstanceLost
from engine_pool.live_view import LiveView
from engine_pool.moves import Moves
from engine_pool.types import FleetEvent, InstanceLoad, InstanceName, InstanceStatus
from migration.report import MoveReport
from tests.web import fake_pool
from tests.web.browsing import CHROMIUM, DATABASE, Site

MODEL = "tiny"

# Without it an expectation gives up after 5 s, which a busy machine needs for one page.
expect.set_options(timeout=60_000)


@dataclass
class FakeView:
    """What the observer reads of a LiveView."""

    statuses: dict[InstanceName, InstanceStatus] = field(default_factory=dict)
    loads: dict[InstanceName, InstanceLoad] = field(default_factory=dict)
    events: list[FleetEvent] = field(default_factory=list)
    moves: dict[str, MoveReport] = field(default_factory=dict)
    store_connected: bool = True
    store_since_unix_s: float = field(default_factory=time.time)

    def move(self, *reports: MoveReport) -> None:
        """Takes in reports of moves."""
        self.moves |= {report.migration_id: report for report in reports}

    def report(self, count: int, seq: int = 1) -> None:
        """Takes in reports of a pool of so many instances."""
        # Two reports within 10 ms would look the same in a row.
        at_unix_s = time.time() + 0.05 * seq
        for status, load in fake_pool.reports(count, seq, at_unix_s):
            self.statuses[status.instance] = status
            self.loads[load.instance] = load


class FakeWatch:
    """In place of the process's watch: no loops, no store."""

    pool = "default"
    model = MODEL

    def __init__(self, view: FakeView, desired: int) -> None:
        self.view = view
        self.observer = observers.Observer(view, desired=desired)
        self.client = SimpleNamespace(view=view, config=SimpleNamespace(pool=self.pool))
        self.samples: list[object] = []

    def start(self) -> None:
        """Nothing runs here: a test looks when it wants to."""

    async def history(self, since_unix_s: float) -> list[object]:
        return self.samples


class Gate:
    """In place of the way to the engines: takes every move, or says why not."""

    def __init__(self) -> None:
        self.wishes: list[dict[str, object]] = []
        self.refusal: tuple[str, str] | None = None
        self.is_lost = False

    async def migrate(self, actor: str, wish: dict[str, object]) -> tuple[str, str] | None:
        if self.is_lost:
            raise InstanceLost("i-02 did not answer.")
        self.wishes.append(wish)
        return self.refusal

    async def cancel_move(self, actor: str, migration_id: str) -> bool:
        return True

    async def measure(self, actor: str, destination_actor: str, size: int) -> dict[str, float]:
        return {"bytes_per_s": 1e9, "round_trip_ms": 0.5}


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
def watch(view: FakeView, monkeypatch: pytest.MonkeyPatch) -> FakeWatch:
    made = FakeWatch(view, desired=2)
    for module in (
        "controlplane.fleet.api",
        "controlplane.fleet.api_requests",
        "controlplane.fleet.fleet_now",
        "web.consumers",
        "web.views.cluster",
        "web.views.drains",
        "web.views.events",
        "web.views.frame",
        "web.views.instances",
        "web.views.migrations",
        "web.views.move_dialog",
        "web.views.nodes",
        "web.views.playground",
        "web.views.preflight",
        "web.views.rebalancing",
        "web.views.scaling",
        "web.views.status",
        "web.views.whatif",
        "web.tenant_dialog",
        "web.request_live",
        "web.views.ledger",
        "web.views.welcome",
    ):
        monkeypatch.setattr(f"{module}.fleet_watch", lambda pool="": made)
    monkeypatch.setattr("web.request_live.all_watches", lambda: [made])
    for module in ("web.request_live", "web.views.request_page"):
        # Whose the requests are that run now; a test that asks has records of its own.
        monkeypatch.setattr(f"{module}.facts_of", lambda ids: {})
    client = SimpleNamespace(view=view, config=SimpleNamespace(pool="default"))
    monkeypatch.setattr("controlplane.fleet.move_selectors.pool_client", lambda: client)
    monkeypatch.setattr("controlplane.fleet.fleet_now.served_clients", lambda: [client])
    for module in ("web.views.move_dialog", "web.views.preflight"):
        monkeypatch.setattr(f"{module}.preflight_get", lambda: None)
    return made


@pytest.fixture
def pool(view: FakeView, watch: FakeWatch) -> Callable[[int], FakeWatch]:
    """Makes a pool of so many instances report."""

    def make(count: int) -> FakeWatch:
        view.report(count)
        watch.observer.remember()
        return watch

    return make


@pytest.fixture
def live(watch: FakeWatch, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A live view of eight instances and a fake way to their engines."""
    view, gate = LiveView(None), Gate()  # type: ignore[arg-type]
    for status, load in fake_pool.reports(8, 1, time.time()):
        view.apply(status)
        view.apply(load)
    client = SimpleNamespace(
        view=view, moves=Moves(view, gate), config=SimpleNamespace(pool="default"), gate=gate
    )
    for module in ("moves", "move_selectors"):
        monkeypatch.setattr(f"controlplane.fleet.{module}.pool_client", lambda: client)
    monkeypatch.setattr(watch.observer, "_live", view)
    return client


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create_user("olga", password="x", is_staff=True)


@pytest.fixture
def outsider(db: None) -> User:
    return User.objects.create_user("oscar", password="x")


@pytest.fixture
def operators_client(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture(autouse=True)
def plain_static_files() -> Iterator[None]:
    """Pages are rendered without a collected folder of static files."""
    storages = {
        "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    with override_settings(STORAGES=storages):
        yield


@pytest.fixture(scope="session")
def site_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every site begins with: making it takes longer than most tests."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.prepare()
    return made.folder / DATABASE


@pytest.fixture(scope="module")
def site(site_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.start(site_database)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not of the session: its event loop would stand in the way of tests that are coroutines.
    options = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=list(options))
        yield made
        made.close()


@pytest.fixture
def eight(site: Site) -> Site:
    """A pool of eight instances, whatever a test before has done to it."""
    if site.pool is None or site.pool.poll() is not None:
        site.report(8)
    return site
