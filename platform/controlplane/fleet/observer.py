"""Looks at the live view twice a second and makes the picture of pages, sockets and API.

One a web process. The picture is immutable, so that any thread may read it; it is made anew only
when somebody looks, since a page that nobody has open should cost nothing.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controlplane.fleet import charts, live_moves, parts, picture, tiles
from controlplane.fleet.history import PoolHistory
from controlplane.fleet.rebalancing_picture import (
    RebalancingRow,
    rebalancing_row,
    strip_note,
)
from engine_pool.live_view import EVENTS_SHOWN, LiveView
from engine_pool.policy.settings import PolicySettings
from engine_pool.rebalancing_facts import RebalancingFacts
from engine_pool.types import FleetSample, InstanceLoad, InstanceName

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""Two pictures a second: updates reach a page within 2 s with room to spare."""
SPARK_EVERY_S: Final = 5.0
"""Forty points of 5 s: a tile's line covers about three minutes."""


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
    moves: dict[str, live_moves.MoveRow]
    point: charts.ChartPoint
    rebalancing: RebalancingRow
    band: picture.Band = picture.BAND_STEPS
    """Of the pool's scaling."""


class Observer:
    """Makes pictures of one pool. `run` is the owner's task."""

    def __init__(
        self,
        live: LiveView,
        *,
        desired: int,
        policy: PolicySettings | None = None,
        latency: Callable[[float], tiles.Latency] = lambda now_s: tiles.Latency(),
        at_gateway: Callable[[], int] = lambda: 0,
        held: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._desired = desired
        self.policy = policy or PolicySettings()
        """The rules that this process dispatches by; the pool process has the same."""
        self.rebalancing = RebalancingFacts()
        """What the store said last; the owner looks every few seconds."""
        self._latency = latency
        self._at_gateway = at_gateway
        self._held = held
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

    def use(self, *, desired: int, policy: PolicySettings) -> None:
        """Shows the pool with these wishes and rules from the next picture on."""
        self._desired = desired
        self.policy = policy

    def look(self) -> Picture:
        """Returns a picture at most `LOOK_EVERY_S` old. Safe in every thread."""
        with self._lock:
            now_unix_s = self._clock()
            last = self._picture
            if last is None or now_unix_s - last.at_unix_s >= LOOK_EVERY_S * 0.9:
                last = self._picture = self._make(now_unix_s)
            return last

    def load(self, name: str) -> InstanceLoad | None:
        """Returns an instance's last report; None without one of its present incarnation."""
        status = self._live.statuses.get(InstanceName(name))
        load = self._live.loads.get(InstanceName(name))
        is_now = status and load and status.incarnation == load.incarnation
        return load if is_now else None

    def kv_token_bytes(self) -> int | None:
        """Returns KV bytes of a token as the newest move tells them; None before the first."""
        for move in reversed(list(self._live.moves.values())):
            if move.block_bytes and move.block_size_tokens:
                return move.block_bytes // move.block_size_tokens
        return None

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
        moves = list(self._live.moves.values())
        counts = live_moves.counts_of(moves, now_unix_s)
        rows = picture.in_order(
            {
                str(name): picture.instance_row(
                    status,
                    loads.get(name),
                    self._history.progress(name, now_unix_s),
                    now_unix_s,
                    self.policy.dispatch.headroom,
                )._replace(
                    moves_in=counts.moves_in(str(name)), moves_out=counts.moves_out(str(name))
                )
                for name, status in list(self._live.statuses.items())
            }
        )
        rates = tiles.Rates(
            self._history.requests_ended.rate(tiles.LATENCY_WINDOW_S, now_unix_s),
            self._history.output_tokens.rate(tiles.RATE_WINDOW_S, now_unix_s),
            self._history.prompt_tokens.rate(tiles.RATE_WINDOW_S, now_unix_s),
            self._latency(now_unix_s),
            counts,
            self._at_gateway(),
            self._held(),
        )
        totals = tiles.totals_of(rows, rates, self._desired, now_unix_s)
        judged = parts.parts_of(self._now_probes(), rows, self._desired, now_unix_s)
        series = charts.series_names(rows)
        rebalancing = rebalancing_row(self.rebalancing, self.policy.rebalance, now_unix_s)
        waits = tiles.held_words(rates.held)
        note = " ".join(
            filter(
                None,
                (
                    picture.leaving_note(rows.values()),
                    strip_note(rebalancing, self.rebalancing),
                    waits and f"{waits}.",
                ),
            )
        )
        band = (self.policy.scaling.low_steps, self.policy.scaling.high_steps)
        self._version += 1
        return Picture(
            version=self._version,
            at_unix_s=now_unix_s,
            rows=rows,
            cells={n: picture.grid_cell(row, now_unix_s, band) for n, row in rows.items()},
            least=picture.least_free(rows),
            totals=totals,
            tiles=tiles.tile_rows(totals, self._sparks),
            parts=judged,
            strip=parts.strip_of(judged, rows, self._desired, now_unix_s, note),
            events=live_moves.merged_events(
                picture.event_rows(list(self._live.events)),
                live_moves.move_events(moves),
                EVENTS_SHOWN,
            ),
            moves=live_moves.move_rows(moves, now_unix_s),
            point=charts.live_point(
                rows, series, totals.output_tokens_per_s, totals.prompt_tokens_per_s, now_unix_s
            ),
            rebalancing=rebalancing,
            band=band,
        )

    def _now_probes(self) -> parts.Probes:
        return replace(
            self.probes,
            store_answers=self._live.store_connected,
            store_since_unix_s=self._live.store_since_unix_s,
        )
