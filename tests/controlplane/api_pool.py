"""A pool behind `/api/v1` as one process sees it: a real store, instances that report, and engines
that do as they are told."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_django.fixtures import Settings as DjangoSettings

from controlplane.gateway import live_requests
from controlplane.tenants.models import Tenant
from engine_pool.client import serve_clients, served_clients
from engine_pool.config import PoolConfig
from engine_pool.live_view import LiveView
from engine_pool.moves import Moves
from engine_pool.store import connect, connect_async
from engine_pool.token_log import request_key
from engine_pool.types import PriorityClass
from tests.controlplane.moving_pool import FakeMoveGate
from tests.web import fake_pool


@dataclass
class FakeDispatcher:
    """Remembers what it was to end."""

    ended: list[tuple[str, str]] = field(default_factory=list)
    queue: tuple[str, ...] = ()
    holding: tuple[str, ...] = ()

    def abort_anywhere(self, request_id: str, sent_to: str) -> None:
        self.ended.append((request_id, sent_to))


class FreshStore:
    """A new connection for each command: every call of a test runs in an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> Any:
        return getattr(connect_async(self._url), name)


class ApiPool:
    """What the control plane uses of a PoolClient."""

    def __init__(self, url: str) -> None:
        self.config = PoolConfig(redis_url=url)
        self.store: Any = FreshStore(url)
        self.view = LiveView(self.store)
        self.moves = Moves(self.view, FakeMoveGate())
        self.dispatcher = FakeDispatcher()

    @property
    def running(self) -> list[str]:
        """Engine requests that instances report."""
        return [r.request_id for load in self.view.loads.values() for r in load.running]

    def report(self, count: int) -> None:
        """Has so many instances report what they run."""
        self.view.store_connected = True
        for status, load in fake_pool.reports(count, 1, time.time()):
            self.view.apply(status)
            self.view.apply(load)

    def run(self, request_id: str, tenant: Tenant, choices: int = 1) -> list[str]:
        """Has the first instance run a request of a tenant; returns its engine requests."""
        load = next(load for load in self.view.loads.values() if load.running)
        ids = [f"{i}_{request_id}" for i in range(choices)] if choices > 1 else [request_id]
        added = [
            replace(load.running[0], request_id=i, priority_class=PriorityClass.NORMAL) for i in ids
        ]
        self.view.apply(
            replace(load, seq=load.seq + 1, running=(*load.running, *added), at_unix_s=time.time())
        )
        fields = {
            "tenant_id": str(tenant.pk),
            "tenant": tenant.slug,
            "class": "normal",
            "pool": self.config.pool,
            "model": "tiny",
            "endpoint": "chat",
            "created": str(int(time.time())),
            "body": "{}",
            **{f"at:{i}": f"{load.instance} {load.incarnation}" for i in ids},
        }
        connect(self.config.redis_url).hset(request_key(request_id), mapping=fields)
        return ids


@contextmanager
def serving(url: str, settings: DjangoSettings, instances: int = 4) -> Iterator[ApiPool]:
    """Lets this process serve a pool, within the block."""
    before, pool = served_clients(), ApiPool(url)
    # A request's record never changes, but another test's request may have the same id.
    live_requests._known.clear()
    pool.report(instances)
    settings.POOL = replace(settings.POOL, redis_url=url)
    serve_clients([pool])  # type: ignore[list-item]
    try:
        yield pool
    finally:
        serve_clients(before)
