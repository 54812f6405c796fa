"""The socket: who may watch, what it sends, and that a client can follow from any point."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth import alogin
from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import HttpRequest

from controlplane.leaving import leaving
from controlplane.sessions import SessionStore
from controlplane.tenants.access import VIEWERS_GROUP, Role
from controlplane.tenants.models import Membership, Tenant
from tests.web.conftest import FakeView, FakeWatch
from web import consumers, messages
from web.consumers import LiveConsumer
from web.live import ROWS_MAX, delta_of, snapshot_of, table_of

# Channels closes old connections before every message, so each test may need the database.
pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "cluster:default"


class Socket(ApplicationCommunicator):
    """A tab's end of the socket. (Channels' own needs a second ASGI server to be installed.)"""

    def __init__(self, user: Any) -> None:
        scope = {"type": "websocket", "path": messages.PATH, "headers": [], "user": user}
        super().__init__(LiveConsumer.as_asgi(), scope)

    async def connect(self) -> None:
        await self.send_input({"type": "websocket.connect"})
        assert (await self.receive_output(timeout=60))["type"] == "websocket.accept"

    async def send_to(self, text: str) -> None:
        await self.send_input({"type": "websocket.receive", "text": text})

    async def receive_from(self) -> Any:
        return json.loads((await self.receive_output(timeout=60))["text"])

    async def disconnect(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(timeout=60)


def applied(rows: dict[str, list[Any]], delta: Any) -> dict[str, list[Any]]:
    """Does what a client does with a delta."""
    rows = {key: list(row) for key, row in rows.items() if key not in delta["gone"]}
    for key, (mask, *values) in delta["rows"].items():
        row = rows.get(key, [None] * mask.bit_length())
        bits = [bit for bit in range(mask.bit_length()) if mask & (1 << bit)]
        assert len(bits) == len(values)
        for bit, value in zip(bits, values, strict=True):
            row[bit] = value
        rows[key] = row
    return rows


def test_a_delta_makes_the_old_rows_the_new_ones(
    pool: Callable[[int], FakeWatch], view: FakeView
) -> None:
    watch = pool(4)
    before = watch.observer.look()
    had = table_of(before, TOPIC)
    view.report(5, seq=2)
    del view.statuses[next(iter(view.statuses))]
    watch.observer._picture = None
    after = watch.observer.look()
    delta = delta_of(after, TOPIC, had, before.version)
    assert delta is not None
    assert delta["prev"] == before.version
    assert delta["gone"] == ["i-01"]
    rebuilt = applied({k: list(v) for k, v in had.items()}, delta)
    assert rebuilt == {k: list(v) for k, v in table_of(after, TOPIC).items()}


def test_nothing_changed_is_no_message(pool: Callable[[int], FakeWatch]) -> None:
    picture = pool(2).observer.look()
    assert delta_of(picture, TOPIC, table_of(picture, TOPIC), picture.version) is None


def test_every_topic_has_the_fields_that_are_announced(pool: Callable[[int], FakeWatch]) -> None:
    picture = pool(8).observer.look()
    for kind, fields in messages.FIELDS.items():
        rows = table_of(picture, kind)
        for row in rows.values():
            assert len(row) == len(fields), kind
        json.dumps(snapshot_of(picture, kind), allow_nan=False)


def test_what_a_socket_carries_is_bounded_at_500_instances(
    pool: Callable[[int], FakeWatch],
) -> None:
    picture = pool(500).observer.look()
    assert len(table_of(picture, TOPIC)) == ROWS_MAX
    assert len(table_of(picture, "grid")) == 500
    assert len(json.dumps(snapshot_of(picture, "grid:default"))) < 40_000
    assert len(table_of(picture, "least")) == 6


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes 50 times a second, so that tests need not wait for real ticks."""
    monkeypatch.setattr(consumers, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(consumers, "TICK_EVERY_S", 0.05)


@pytest.fixture
async def socket(watch: FakeWatch, fast: None) -> AsyncIterator[Socket]:
    made = Socket(User(username="olga", is_staff=True))
    await made.connect()
    yield made
    await made.disconnect()


async def test_it_goes_away_with_its_server_and_says_that_it_may_come_back(
    watch: FakeWatch, fast: None
) -> None:
    others = set(leaving.sockets)
    made = Socket(User(username="olga", is_staff=True))
    await made.connect()
    (mine,) = set(leaving.sockets) - others
    assert not mine.is_busy, "nobody waits for a page"
    await mine.go_away()
    while (said := await made.receive_output(timeout=60))["type"] == "websocket.send":
        pass
    assert said == {"type": "websocket.close", "code": messages.CLOSE_GOING_AWAY}
    assert mine not in leaving.sockets
    await made.disconnect()


async def receive(socket: Socket, kind: str) -> Any:
    """Returns the next message of a kind; others are passed over."""
    async with asyncio.timeout(60):
        while True:
            message = await socket.receive_from()
            if message["t"] == kind:
                return message


async def subscribe(socket: Socket, **topics: int) -> None:
    wanted = {topic.replace("_", ":"): seq for topic, seq in topics.items()}
    await socket.send_to(json.dumps({"t": messages.SUBSCRIBE, "topics": wanted}))


async def anonymous() -> AnonymousUser:
    return AnonymousUser()


async def member() -> User:
    """Makes the owner of a tenant, who has no role of the platform."""
    made = await User.objects.acreate(username="mia")
    tenant = await Tenant.objects.acreate(name="Acme", slug="acme")
    await Membership.objects.acreate(tenant=tenant, user=made, role=Role.OWNER.value)
    return made


@pytest.mark.parametrize("who", [anonymous, member])
async def test_who_may_not_see_the_pools_is_shut_out(
    who: Callable[[], Awaitable[Any]], watch: FakeWatch
) -> None:
    socket = Socket(await who())
    await socket.connect()
    closed = await socket.receive_output(timeout=60)
    assert (closed["type"], closed["code"]) == ("websocket.close", messages.CLOSE_NOT_ALLOWED)
    await subscribe(socket, cluster_default=0)
    assert await socket.receive_nothing(timeout=0.2)


async def test_a_viewer_of_the_platform_watches(watch: FakeWatch, fast: None) -> None:
    viewer = await User.objects.acreate(username="vera")
    await viewer.groups.aadd(await Group.objects.acreate(name=VIEWERS_GROUP))
    socket = Socket(viewer)
    await socket.connect()
    assert (await receive(socket, messages.TICK))["t"] == messages.TICK
    await socket.disconnect()


async def test_a_subscription_gives_a_snapshot_then_deltas(socket: Socket, view: FakeView) -> None:
    view.report(2)
    await subscribe(socket, cluster_default=0)
    snapshot = await receive(socket, messages.SNAPSHOT)
    rows = snapshot["rows"]
    seq = snapshot["seq"]
    for number in range(2, 5):
        view.report(2, seq=number)
        delta = await receive(socket, messages.DELTA)
        assert delta["prev"] == seq
        seq = delta["seq"]
        rows = applied(rows, delta)
    assert list(rows) == ["i-01", "i-02"]


async def test_an_instance_that_is_gone_is_said_so(socket: Socket, view: FakeView) -> None:
    view.report(2)
    await subscribe(socket, cluster_default=0)
    await receive(socket, messages.SNAPSHOT)
    view.statuses.pop(next(iter(view.statuses)))
    while not (delta := await receive(socket, messages.DELTA))["gone"]:
        pass
    assert delta["gone"] == ["i-01"]


async def test_it_ticks_when_nothing_changes(socket: Socket) -> None:
    first = await receive(socket, messages.TICK)
    second = await receive(socket, messages.TICK)
    assert second["at"] > first["at"]


async def test_a_new_subscription_replaces_the_old_one(socket: Socket, view: FakeView) -> None:
    view.report(2)
    await subscribe(socket, cluster_default=0, events=0)
    await receive(socket, messages.SNAPSHOT)
    await subscribe(socket, events=0)
    while (await receive(socket, messages.TICK))["seq"].keys() != {"events"}:
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "t: expected"),
        ('{"t":"sub"}', "topics: expected"),
        ('{"t":"sub","topics":{"cluster:default":"x"}}', "topics: expected"),
        ('{"t":"sub","topics":{"secrets":0}}', "topics: unknown secrets"),
        ('{"t":"sub","topics":{"' + "x" * 5000 + '":0}}', "at most"),
    ],
)
async def test_what_is_wrong_is_said(socket: Socket, text: str, words: str) -> None:
    await socket.send_to(text)
    assert words in (await receive(socket, messages.ERROR))["message"]


async def test_a_slow_client_gets_the_difference_not_a_queue(
    socket: Socket, view: FakeView, watch: FakeWatch
) -> None:
    """While nobody reads, one message at most waits for each look of the picture's half second."""
    view.report(2)
    await subscribe(socket, cluster_default=0)
    rows = (await receive(socket, messages.SNAPSHOT))["rows"]
    view.report(2, seq=9)
    final = {k: list(v) for k, v in table_of(watch.observer._make(0.0), TOPIC).items()}
    while [row[4] for row in rows.values()] != [row[4] for row in final.values()]:
        rows = applied(rows, await receive(socket, messages.DELTA))
    assert rows.keys() == final.keys()


async def test_who_loses_the_role_is_shut_out(
    watch: FakeWatch, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PERMISSION_EVERY_S", 0.01)
    operator = await User.objects.acreate(username="olga", is_staff=True)
    session = SessionStore()
    request = HttpRequest()
    request.session = session
    await alogin(request, operator, backend="django.contrib.auth.backends.ModelBackend")
    await session.asave()
    socket = Socket(operator)
    socket.scope["session"] = session
    await socket.connect()
    await receive(socket, messages.TICK)
    await receive(socket, messages.TICK)
    operator.is_staff = False
    await operator.asave()
    async with asyncio.timeout(60):
        while (output := await socket.receive_output(timeout=60))["type"] != "websocket.close":
            pass
    assert output["code"] == messages.CLOSE_NOT_ALLOWED
