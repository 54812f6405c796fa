"""Everything that can arrive on `/ws/live`. `static/live/messages.js` mirrors this file.

    -> {t: "sub", topics: {"cluster:default": 18231}}   the whole set, each with the last seq had
    <- {t: "snap", topic, seq, at, rows: {key: [...]}}        replaces what was known of the topic
    <- {t: "d", topic, seq, prev, at, rows: {key: [mask, ...]}, gone: [key]}
    <- {t: "tick", at, seq: {topic: seq}}                     each second, also when nothing changed
    <- {t: "err", message}                                    what was wrong with the last message

A row is an array in the order of FIELDS. In a delta its first element is a bit mask: bit i is set
when field i follows. `at` is the server's time in unix seconds; `prev` is the seq that the delta
builds upon.
"""

from typing import Final, Literal, TypedDict

from controlplane.fleet.charts import ChartPoint
from controlplane.fleet.live_moves import MoveRow
from controlplane.fleet.parts import StripRow
from controlplane.fleet.picture import EventRow, GridCell, InstanceRow
from controlplane.fleet.rebalancing_picture import RebalancingRow
from controlplane.fleet.tiles import TileRow

PATH: Final = "/ws/live"
SUBSCRIBE: Final = "sub"
SNAPSHOT: Final = "snap"
DELTA: Final = "d"
TICK: Final = "tick"
ERROR: Final = "err"

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "cluster": InstanceRow._fields,
    "least": InstanceRow._fields,
    "grid": GridCell._fields,
    "tiles": TileRow._fields,
    "strip": StripRow._fields,
    "events": EventRow._fields,
    "moves": MoveRow._fields,
    "chart": ChartPoint._fields,
    "rebalancing": RebalancingRow._fields,
}
"""The fields of a row, by the kind of topic. A topic is a kind, or `kind:pool`."""

POOL_KINDS: Final = ("cluster", "least", "grid", "tiles", "chart")
GLOBAL_KINDS: Final = ("strip", "events", "moves", "rebalancing")

CLOSE_GOING_AWAY: Final = 1001
CLOSE_NOT_ALLOWED: Final = 1008
CLOSE_BROKEN: Final = 1011

Row = tuple[object, ...]
Table = dict[str, Row]


class Subscribe(TypedDict):
    t: Literal["sub"]
    topics: dict[str, int]


class Snapshot(TypedDict):
    t: Literal["snap"]
    topic: str
    seq: int
    at: float
    rows: Table


class Delta(TypedDict):
    t: Literal["d"]
    topic: str
    seq: int
    prev: int
    at: float
    rows: dict[str, list[object]]
    gone: list[str]


class Tick(TypedDict):
    t: Literal["tick"]
    at: float
    seq: dict[str, int]


class Error(TypedDict):
    t: Literal["err"]
    message: str


ServerMessage = Snapshot | Delta | Tick | Error
