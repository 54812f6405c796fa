"""What a subscriber of `/ws/live` gets to see, and what changed since it last looked. Pure."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from controlplane.fleet.observer import Picture
from web.messages import DELTA, GLOBAL_KINDS, POOL_KINDS, SNAPSHOT, Delta, Row, Snapshot, Table

ROWS_MAX: Final = 40
"""Rows that a page shows at most, which bounds what a socket carries; above there is the grid."""


def known_topics(pool: str) -> frozenset[str]:
    """Returns the topics of this process."""
    return frozenset((*GLOBAL_KINDS, *(f"{kind}:{pool}" for kind in POOL_KINDS)))


def table_of(picture: Picture, topic: str) -> Table:
    """Returns the rows of one topic. Raises: KeyError for a kind that does not exist."""
    tables: dict[str, Mapping[str, Row]] = {
        "cluster": dict(islice(picture.rows.items(), ROWS_MAX)),
        "least": picture.least,
        "grid": picture.cells,
        "tiles": picture.tiles,
        "strip": {"strip": picture.strip},
        "events": picture.events,
        "moves": picture.moves,
        "chart": {"now": picture.point},
        "rebalancing": {"now": picture.rebalancing},
    }
    return dict(tables[topic.partition(":")[0]])


def snapshot_of(picture: Picture, topic: str) -> Snapshot:
    """Returns the whole topic."""
    return {
        "t": SNAPSHOT,
        "topic": topic,
        "seq": picture.version,
        "at": round(picture.at_unix_s, 3),
        "rows": table_of(picture, topic),
    }


def delta_of(picture: Picture, topic: str, had: Table, had_seq: int) -> Delta | None:
    """Returns what differs from what the client last got; None when nothing does."""
    now = table_of(picture, topic)
    rows = {key: row for key in now if (row := _changed(had.get(key), now[key])) is not None}
    gone = [key for key in had if key not in now]
    if not rows and not gone:
        return None
    return {
        "t": DELTA,
        "topic": topic,
        "seq": picture.version,
        "prev": had_seq,
        "at": round(picture.at_unix_s, 3),
        "rows": rows,
        "gone": gone,
    }


def _changed(before: Row | None, after: Row) -> list[object] | None:
    """Returns [mask, changed values in the order of the fields], None when nothing changed."""
    if before is None:
        return [(1 << len(after)) - 1, *after]
    if before == after:
        return None
    mask, values = 0, []
    for bit, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            mask |= 1 << bit
            values.append(new)
    return [mask, *values]
