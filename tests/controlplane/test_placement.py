"""The ranking of a web process follows its live view: no choice differs from one made anew."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from engine_pool.ledger import LEDGER_LIFE_S
from engine_pool.live_view import LiveView
from engine_pool.placement import Placement
from engine_pool.policy.dispatch import Choice, RequestDemand, choose
from engine_pool.policy.reports import REPORT_MAX_AGE_S, pool_standings
from engine_pool.policy.settings import DispatchRule
from engine_pool.types import (
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceState,
    PriorityClass,
    RequestId,
)
from migration.report import MoveState
from tests.controlplane.fakes import load_of, move_of, status_of

NAMES = [InstanceName(f"i-{n}") for n in range(4)]
RULE = DispatchRule()
START_UNIX_S = 1_000_000.0


def load(name: str, at_unix_s: float, seq: int = 1, **more: object) -> InstanceLoad:
    return dataclasses.replace(load_of(name, seq), at_unix_s=at_unix_s, **more)  # type: ignore[arg-type]


def demand(tokens: int = 100, name: str = "new") -> RequestDemand:
    return RequestDemand(RequestId(name), tokens)


def sent(request_id: str, instance: str, at_unix_s: float, tokens: int = 160) -> InFlight:
    return InFlight(
        RequestId(request_id), InstanceName(instance), PriorityClass.NORMAL, tokens, at_unix_s
    )


def pool(*names: str) -> tuple[LiveView, Placement]:
    live = LiveView(None)  # type: ignore[arg-type]
    placement = Placement(live, RULE)
    for name in names:
        live.apply(status_of(name))
        live.apply(load(name, START_UNIX_S))
    return live, placement


def chosen(placement: Placement, now_unix_s: float = START_UNIX_S, **more: object) -> str:
    found = placement.choose(demand(), now_unix_s, **more)  # type: ignore[arg-type]
    return found.instance if isinstance(found, Choice) else f"nobody: {found.why}"


def test_an_old_report_takes_its_instance_out_and_a_new_one_back_in() -> None:
    live, placement = pool("i-0", "i-1")
    live.apply(load("i-1", START_UNIX_S + 3, seq=2, used_tokens=9000))
    assert chosen(placement) == "i-0"
    later_unix_s = START_UNIX_S + REPORT_MAX_AGE_S + 1
    assert chosen(placement, later_unix_s) == "i-1"
    assert chosen(placement, later_unix_s + 3).startswith("nobody")
    live.apply(load("i-0", later_unix_s + 3, seq=2))
    assert chosen(placement, later_unix_s + 3) == "i-0"


def test_excluded_ones_are_not_chosen_and_stay_in_the_ranking() -> None:
    live, placement = pool("i-0", "i-1")
    live.apply(load("i-1", START_UNIX_S, seq=2, used_tokens=9000))
    assert chosen(placement, excluded={"i-0"}) == "i-1"
    assert chosen(placement, excluded={"i-0", "i-1"}).startswith("nobody")
    assert chosen(placement) == "i-0"


def test_what_was_sent_counts_until_it_is_shown_expired_or_refused() -> None:
    live, placement = pool("i-0", "i-1")
    live.apply(load("i-1", START_UNIX_S, seq=2, used_tokens=1000))
    live.note_sent([sent("a", "i-0", START_UNIX_S, tokens=5000)])
    assert chosen(placement) == "i-1"
    live.note_refused(RequestId("a"))
    assert chosen(placement) == "i-0"
    live.note_sent([sent("b", "i-0", START_UNIX_S, tokens=5000)])
    assert chosen(placement) == "i-1"
    assert chosen(placement, START_UNIX_S + LEDGER_LIFE_S + 0.1) == "i-0"


def test_a_message_that_comes_twice_counts_once() -> None:
    live, placement = pool("i-0")
    for _ in range(2):
        live.note_sent([sent("a", "i-0", START_UNIX_S)])
    (standing,) = placement.standings(START_UNIX_S)
    assert standing.waiting == 1


def test_a_draining_instance_receives_nothing() -> None:
    live, placement = pool("i-0", "i-1")
    live.apply(status_of("i-0", InstanceState.DRAINING))
    assert chosen(placement) == "i-1"
    live.apply(status_of("i-1", InstanceState.DRAINING))
    assert chosen(placement).startswith("nobody")


def test_room_is_told_by_reports_and_what_leaves_the_ledger_not_by_what_enters() -> None:
    live, placement = pool("i-0")
    told: list[str] = []
    placement.on_room = lambda: told.append("room")
    live.note_sent([sent("a", "i-0", START_UNIX_S)])
    assert told == []
    live.note_refused(RequestId("a"))
    live.apply(load("i-0", START_UNIX_S, seq=2))
    live.apply(status_of("i-0"))
    assert len(told) == 3


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["load", "status", "sent", "refused", "moved", "gone", "time", "stale"]),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    min_size=5,
    max_size=60,
)


def _apply(live: LiveView, kind: str, which: int, n: int, now_unix_s: float, seq: int) -> None:
    name = NAMES[which]
    match kind:
        case "load" | "stale":
            running = load_of(name, running=[f"r{n}"], waiting=[f"r{n + 1}"])
            live.apply(
                load(
                    name,
                    now_unix_s - (4 if kind == "stale" else 0),
                    seq,
                    used_tokens=n * 1000,
                    running=running.running,
                    waiting=running.waiting if n % 2 else (),
                    incarnation="ab"[n % 5 == 0],
                )
            )
        case "status":
            states = [InstanceState.SERVING] * 8 + [InstanceState.DRAINING, InstanceState.LOST]
            live.apply(status_of(name, states[n], "ab"[n % 4 == 0]))
        case "sent":
            live.note_sent([sent(f"r{n}", name, now_unix_s, 16 * (n + 1))])
        case "refused":
            live.note_refused(RequestId(f"r{n}"))
        case "moved":
            live.apply(move_of(f"r{n}", MoveState.COMMITTED, name, NAMES[which - 1], seq))
        case "gone":
            live.apply(name)


@given(_STEPS)
def test_no_choice_differs_from_one_made_anew(steps: list[tuple[str, int, int]]) -> None:
    live, placement = pool(*NAMES)
    now_unix_s = START_UNIX_S
    for seq, (kind, which, n) in enumerate(steps, start=2):
        now_unix_s += n / 3 if kind == "time" else 0.01
        _apply(live, kind, which, n, now_unix_s, seq)
        anew = pool_standings(live.pool_view(now_unix_s), now_unix_s)
        assert sorted(placement.standings(now_unix_s), key=lambda s: s.instance) == sorted(
            anew, key=lambda s: s.instance
        )
        for tokens in (100, 5000, 20_000):
            request = demand(tokens, f"q{seq}")
            assert placement.choose(request, now_unix_s) == choose(anew, request, RULE)
