"""Looks at the live view twice a second and makes the picture of pages, sockets and API.

One a web process. The picture is immutable, so that any thread may read it; it is made anew only
when somebody looks, since a page that nobody has open should cost nothing.
"""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
import redis.asyncio
from django.db import DatabaseError, close_old_connections, connection

from controlplane.fleet import charts, parts, picture, tiles
from controlplane.fleet.history import PoolHistory
from controlplane.fleet.latency import LatencyWindow, read_buckets
from controlplane.gateway.metrics import TTFT_S
from engine_pool import view
from engine_pool.client import pool_client
from engine_pool.live_view import LiveView
from engine_pool.served_model import DEFAULT_MODEL
from engine_pool.types import FleetSample

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""Two pictures a second: updates reach a page within 2 s with room to spare."""
PROBE_EVERY_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 2.0
SPARK_EVERY_S: Final = 5.0
"""Forty points of 5 s: a tile's line covers about three minutes."""
SEED_TRIES: Final = 6
"""Looks, half a second apart, for which the past waits until the first instances are known."""
WORKER_HEARTBEAT_KEY: Final = "ferry:worker-heartbeat"


@dataclass(frozen=True, slots=True)
class Picture:
    """The pool at one moment."""

    version: int
    at_unix_s: float
    rows: dict[str, picture.InstanceRow]
    cells: dict[str, picture.GridCell]
    least: dict[str, picture.InstanceRow]
    totals: tiles.Totals
    tiles: dict[str, tiles.TileRow]
    parts: tuple[parts.Part, ...]
    strip: parts.StripRow
    events: dict[str, picture.EventRow]
    point: charts.ChartPoint


class Observer:
    """Makes pictures of one pool. `run` is the owner's task."""

    def __init__(
        self,
        live: LiveView,
        *,
        desired: int,
        latency: Callable[[float], tiles.Latency] = lambda now_s: tiles.Latency(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._desired = desired
        self._latency = latency
        self._clock = clock
        self._history = PoolHistory()
        self._sparks: dict[str, deque[float | None]] = {}
        self._spark_due_unix_s = 0.0
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        # Versions of different processes must not be taken for one another: they start at the time.
        self._version = int(clock() * 1000)
        now_unix_s = clock()
        self.probes = parts.Probes(
            store_answers=live.store_connected,
            store_since_unix_s=live.store_since_unix_s,
            database_answers=None,
            database_since_unix_s=now_unix_s,
            pool_sample_unix_s=None,
            worker_heartbeat_unix_s=None,
            observed_since_unix_s=now_unix_s,
        )

    def look(self) -> Picture:
        """Returns a picture at most `LOOK_EVERY_S` old. Safe in every thread."""
        with self._lock:
            now_unix_s = self._clock()
            last = self._picture
            if last is None or now_unix_s - last.at_unix_s >= LOOK_EVERY_S * 0.9:
                last = self._picture = self._make(now_unix_s)
            return last

    def remember(self) -> None:
        """Feeds the history; the owner calls it twice a second, also when nobody looks."""
        with self._lock:
            self._history.feed(list(self._live.loads.values()), self._clock())
        if self._clock() >= self._spark_due_unix_s:
            self._spark_due_unix_s = self._clock() + SPARK_EVERY_S
            for key, value in tiles.spark_values(self.look().totals).items():
                self._spark(key).append(value)

    def seed(self, samples: Sequence[FleetSample]) -> None:
        """Fills the tiles' lines with what the pool remembers from before this process started."""
        step = int(SPARK_EVERY_S)
        capacity = {str(n): x.capacity_tokens for n, x in list(self._live.loads.items())}
        points = charts.points_of(samples, (), capacity)
        for sample, point in list(zip(samples, points, strict=True))[::step]:
            running = [i.running for i in sample.instances.values() if i.running is not None]
            self._spark("running").append(sum(running) if running else None)
            self._spark("output").append(point.output_tokens_per_s)
            self._spark("kv").append(point.used_percent)

    def _spark(self, key: str) -> deque[float | None]:
        return self._sparks.setdefault(key, deque(maxlen=tiles.SPARK_POINTS))

    def _make(self, now_unix_s: float) -> Picture:
        loads = dict(self._live.loads)
        rows = picture.in_order(
            {
                str(name): picture.instance_row(
                    status, loads.get(name), self._history.progress(name, now_unix_s), now_unix_s
                )
                for name, status in list(self._live.statuses.items())
            }
        )
        rates = tiles.Rates(
            self._history.requests_ended.rate(tiles.LATENCY_WINDOW_S, now_unix_s),
            self._history.output_tokens.rate(tiles.RATE_WINDOW_S, now_unix_s),
            self._history.prompt_tokens.rate(tiles.RATE_WINDOW_S, now_unix_s),
            self._latency(now_unix_s),
        )
        totals = tiles.totals_of(rows, rates, self._desired, now_unix_s)
        judged = parts.parts_of(self._now_probes(), rows, self._desired, now_unix_s)
        series = charts.series_names(rows)
        self._version += 1
        return Picture(
            version=self._version,
            at_unix_s=now_unix_s,
            rows=rows,
            cells={name: picture.grid_cell(row, now_unix_s) for name, row in rows.items()},
            least=picture.least_free(rows),
            totals=totals,
            tiles=tiles.tile_rows(totals, self._sparks),
            parts=judged,
            strip=parts.strip_of(judged, rows, self._desired, now_unix_s),
            events=picture.event_rows(list(self._live.events)),
            point=charts.live_point(
                rows, series, totals.output_tokens_per_s, totals.prompt_tokens_per_s, now_unix_s
            ),
        )

    def _now_probes(self) -> parts.Probes:
        known = self.probes
        return parts.Probes(
            store_answers=self._live.store_connected,
            store_since_unix_s=self._live.store_since_unix_s,
            database_answers=known.database_answers,
            database_since_unix_s=known.database_since_unix_s,
            pool_sample_unix_s=known.pool_sample_unix_s,
            worker_heartbeat_unix_s=known.worker_heartbeat_unix_s,
            observed_since_unix_s=known.observed_since_unix_s,
        )


class Watch:
    """The running side of the observer: its two loops and its way to store and database."""

    def __init__(
        self, observer: Observer, store: "redis.asyncio.Redis[bytes]", *, pool: str, model: str
    ) -> None:
        self.observer = observer
        self.pool = pool
        self.model = model
        """The name by which clients ask for the pool's model."""
        self._store = store
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins in the running event loop. Does nothing when it runs already."""
        if not self._tasks or any(task.done() for task in self._tasks):
            self._tasks = [
                asyncio.create_task(self._look_on(), name="fleet observer"),
                asyncio.create_task(self._probe_on(), name="fleet probes"),
            ]

    async def stop(self) -> None:
        """Ends both loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def history(self, since_unix_s: float) -> list[FleetSample]:
        """Returns the pool's samples since a time; none when the store does not answer."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await view.read_samples(self._store, since_unix_s)
        except (redis.RedisError, OSError, TimeoutError) as error:
            logger.warning("no samples: %s", error or type(error).__name__)
            return []

    async def _look_on(self) -> None:
        await self._seed()
        while True:
            self.observer.remember()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _seed(self) -> None:
        for _ in range(SEED_TRIES):
            # Without the instances' capacities there is no share of used memory.
            if self.observer.look().rows:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self.observer.seed(await self.history(time.time() - charts.HISTORY_S))

    async def _probe_on(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_EVERY_S)

    async def probe(self) -> None:
        """Asks the database, and the store for the signs of life of pool and worker."""
        known = self.observer.probes
        database = await self._database_answers()
        sample, beat = known.pool_sample_unix_s, known.worker_heartbeat_unix_s
        with contextlib.suppress(redis.RedisError, OSError, TimeoutError):
            sample, beat = await self._signs_of_life()
        changed = database != known.database_answers
        self.observer.probes = parts.Probes(
            store_answers=known.store_answers,
            store_since_unix_s=known.store_since_unix_s,
            database_answers=database,
            database_since_unix_s=time.time() if changed else known.database_since_unix_s,
            pool_sample_unix_s=sample,
            worker_heartbeat_unix_s=beat,
            observed_since_unix_s=known.observed_since_unix_s,
        )

    async def _signs_of_life(self) -> tuple[float | None, float | None]:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            newest = await self._store.xrevrange(view.SAMPLES, count=1)
            beat = await self._store.get(WORKER_HEARTBEAT_KEY)
        sample = view.decode_sample(newest[0][1][b"s"]).at_unix_s if newest else None
        try:
            return sample, None if beat is None else float(beat)
        except ValueError:
            logger.error("%s is no time: %r", WORKER_HEARTBEAT_KEY, beat[:40])
            return sample, None

    async def _database_answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await asyncio.to_thread(_ask_database)
        except (DatabaseError, OSError, TimeoutError):
            return False


def _ask_database() -> bool:
    # A thread of its own keeps its connection; one that went bad must not be asked again.
    close_old_connections()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone() == (1,)


@functools.cache
def fleet_watch() -> Watch:
    """Returns this process's watch on its pool. Raises: ConfigError."""
    client = pool_client()
    config = client.config
    model = config.served_model_name or Path(config.model).name or DEFAULT_MODEL
    ttft = LatencyWindow(lambda: read_buckets(TTFT_S))
    observer = Observer(client.view, desired=config.instances, latency=ttft.latency)
    return Watch(observer, client.store, pool=config.pool, model=model)
