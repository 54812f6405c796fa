"""The cluster page: is the pool well, and what is it doing?"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.fleet import picture as pictures
from controlplane.fleet.charts import LINES_MAX
from controlplane.fleet.live_moves import MoveRow
from controlplane.fleet.observer import Picture
from controlplane.fleet.tiles import TileRow, number
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from web.live import ROWS_MAX, snapshot_of
from web.views.access import needs
from web.views.frame import render_page
from web.views.instances import sides_of

TILE_LABELS: Final = {
    "serving": "Instances serving",
    "running": "Requests running",
    "requests": "Requests, 1 min",
    "ttft": "TTFT p99, 1 min",
    "output": "Output tokens, 10 s",
    "kv": "KV used",
    "moves": "Moves, 5 min",
}
MOVES_SHOWN: Final = 6
"""Rows of the panel; more are counted."""
STATES_SHOWN: Final = (
    "starting", "cordoned", "draining", "drained", "no_progress", "crash_loop", "lost",
)  # fmt: skip

T = TypeVar("T", pictures.InstanceRow, pictures.GridCell)


class Tile(NamedTuple):
    label: str
    row: TileRow

    @property
    def tone(self) -> str:
        return self.row.tone


class LegendEntry(NamedTuple):
    key: str
    """`level:band` or `state:lost`: what the entry filters by."""
    state: str
    level: str
    word: str
    count: int


@needs(Role.VIEWER)
@require_safe
def cluster(request: HttpRequest) -> HttpResponse:
    """Shows rows for a small pool, a grid for a large one."""
    watch = fleet_watch()
    picture = watch.observer.look()
    total = len(picture.rows)
    view = request.GET.get("view", "")
    if view not in ("rows", "grid"):
        view = "rows" if total <= ROWS_MAX else "grid"
    instances = "cluster" if view == "rows" else "grid"
    topics = [f"{instances}:{watch.pool}", f"tiles:{watch.pool}", "events", "moves", "rebalancing"]
    if view == "grid":
        topics.append(f"least:{watch.pool}")
    context = {
        "page": "cluster",
        "view": view,
        "query": request.GET.get("q", "")[:100],
        "total": total,
        "desired": picture.totals.desired,
        "many": total > LINES_MAX,
        "count_text": count_text(picture, view),
        "tiles": [(k, Tile(TILE_LABELS[k], row)) for k, row in picture.tiles.items()],
        "nodes": _by_node(list(picture.rows.items())[:ROWS_MAX]) if view == "rows" else [],
        "cells": _by_node(picture.cells.items()) if view == "grid" else [],
        "legend": legend(picture) if view == "grid" else [],
        "moves": picture.moves,
        "move_slots": move_slots(picture),
        "rebalancing": picture.rebalancing,
        "sides": sides_of(watch.observer, picture) if view == "rows" else [],
        "least": list(picture.least.items()),
        "band": picture.band,
        "events": list(picture.events.items()),
        "oldest_event_unix_s": min(
            (e.at_unix_s for e in picture.events.values()), default=picture.at_unix_s
        ),
        "snap": _snapshot(picture, topics, watch.pool),
    }
    return render_page(request, "cluster/page.html", picture, context)


def move_slots(picture: Picture) -> list[tuple[str, MoveRow | None]]:
    """Returns the panel's rows; empty ones stand ready, so that a new move needs no new element."""
    shown: list[tuple[str, MoveRow | None]] = list(picture.moves.items())
    return [*shown, *((("", None),) * MOVES_SHOWN)][:MOVES_SHOWN]


def count_text(picture: Picture, view: str) -> str:
    """Says how many instances stand below, and what was left out."""
    total = len(picture.rows)
    if view == "rows" and total > ROWS_MAX:
        return f"first {ROWS_MAX} of {total}; the grid shows all"
    nodes = len({row.node for row in picture.rows.values()})
    on = f" on {nodes} node{'s' if nodes != 1 else ''}" if total else ""
    return f"{total}{on}"


def legend(picture: Picture) -> list[LegendEntry]:
    """Counts the cells of each look; serving ones by freeness, the others by state."""
    cells = picture.cells.values()
    levels = [c.level for c in cells if c.state == "serving"]
    states = [c.state for c in cells]
    return [
        *(
            LegendEntry(f"level:{level}", "serving", level, word, levels.count(level))
            for level, word in level_words(picture.band).items()
        ),
        *(
            LegendEntry(f"state:{s}", s, "none", s.replace("_", " "), states.count(s))
            for s in STATES_SHOWN
        ),
    ]


def level_words(band: pictures.Band) -> dict[str, str]:
    """Returns what each of the grid's colours means, in steps; `band`: of the pool's scaling."""
    low, high = (number(steps) for steps in band)
    short = number(min(pictures.SHORT_BELOW_STEPS, band[0]))
    spare = number(max(pictures.SPARE_ABOVE_STEPS, band[1]))
    return {
        "short": f"under {short}",
        "low": f"{short}–{low}",  # noqa: RUF001
        "band": f"in the band {low}–{high}",  # noqa: RUF001
        "high": f"over {high}",
        "spare": f"over {spare}, or idle",
        "none": "no report",
    }


def _by_node(rows: Iterable[tuple[str, T]]) -> list[tuple[str, list[tuple[str, T]]]]:
    return [(node, list(group)) for node, group in groupby(rows, lambda item: item[1].node)]


def _snapshot(picture: Picture, topics: list[str], pool: str) -> dict[str, Any]:
    return {
        "pool": pool,
        "topics": {topic: snapshot_of(picture, topic) for topic in topics},
        "series": picture.point.series,
        "band": picture.band,
        "thresholds": [picture.rebalancing.below_steps, picture.rebalancing.above_steps],
    }
