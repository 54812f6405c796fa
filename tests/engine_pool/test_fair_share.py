"""Start-time fair queueing: what tenants of one class get while they all want more."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.fair_share import SWEEP_EVERY, FairShare
from engine_pool.types import PriorityClass

NORMAL = PriorityClass.NORMAL


class Server:
    """Serves one request at a time, the lowest start tag first, at equal tags the earlier one."""

    def __init__(self) -> None:
        self.fair = FairShare()
        self.waiting: dict[str, tuple[str, float]] = {}
        """Tenant, tokens that the request will really use; in the order of arrival."""
        self.served: Counter[str] = Counter()

    def send(
        self, tenant: str, tokens: float, *, expected: float | None = None, weight: float = 1.0
    ) -> str:
        name = f"{tenant}-{len(self.waiting)}-{sum(self.served.values())}-{len(self.served)}"
        cost = tokens if expected is None else expected
        self.fair.arrive(name, NORMAL, tenant, weight=weight, cost_tokens=cost)
        self.waiting[name] = (tenant, tokens)
        return name

    def serve(self) -> str:
        """Serves one request from its first to its last token; returns its tenant."""
        name = min(self.waiting, key=self.fair.start_tag)
        tenant, tokens = self.waiting.pop(name)
        self.fair.admit(name)
        self.fair.end(name, tokens)
        self.served[tenant] += tokens
        return tenant


def test_a_tenant_that_sends_a_hundred_times_as_much_gets_no_more():
    server = Server()
    for _ in range(1000):
        server.send("heavy", 100)
    for _ in range(10):
        server.send("light", 100)
    assert Counter(server.serve() for _ in range(20)) == {"heavy": 10, "light": 10}


def test_long_requests_count_for_as_much_as_they_take():
    server = Server()
    for _ in range(100):
        server.send("long", 1000)
        for _ in range(10):
            server.send("short", 100)
    for _ in range(110):
        server.serve()
    assert server.served == {"long": 10_000, "short": 10_000}


def test_a_weight_is_a_share():
    server = Server()
    for _ in range(100):
        server.send("gold", 10, weight=3)
        server.send("plain", 10)
    assert Counter(server.serve() for _ in range(80)) == {"gold": 60, "plain": 20}


def test_a_tenant_is_charged_what_it_really_used():
    server = Server()
    for _ in range(200):
        server.send("brief", 10, expected=500)
        server.send("exact", 500, expected=500)
    while server.served["exact"] < 2000:
        server.serve()
    assert server.served["brief"] == pytest.approx(2000, abs=500)


def test_a_tenant_that_was_away_has_saved_nothing_up():
    server = Server()
    server.send("away", 10)
    for _ in range(100):
        server.send("steady", 10)
    for _ in range(51):
        server.serve()
    for _ in range(50):
        server.send("away", 10)
    assert Counter(server.serve() for _ in range(20)) == {"steady": 10, "away": 10}


def test_a_newcomer_goes_before_the_queue_of_others():
    server = Server()
    for _ in range(50):
        server.send("heavy", 10)
    for _ in range(5):
        server.serve()
    server.send("new", 10)
    assert "new" in {server.serve(), server.serve()}


def test_a_request_that_never_ran_is_charged_nothing():
    server = Server()
    gone = server.send("a", 1000)
    server.send("a", 10)
    server.send("b", 10)
    server.waiting.pop(gone)
    server.fair.end(gone, 0)
    assert [server.serve(), server.serve()] == ["a", "b"]


def test_one_that_comes_out_of_turn_does_not_push_newcomers_back():
    server = Server()
    for _ in range(50):
        server.send("heavy", 10)
    server.serve()
    moved = server.send("heavy", 10)
    server.waiting.pop(moved)
    server.fair.admit(moved)
    server.send("new", 10)
    assert "new" in {server.serve(), server.serve()}


def test_the_tags_that_change_are_told():
    fair = FairShare()
    for name in ("first", "second", "other"):
        tenant = "b" if name == "other" else "a"
        fair.arrive(name, NORMAL, tenant, weight=1, cost_tokens=10)
    assert fair.admit("first") == ()
    assert fair.start_tag("second") == 10
    assert fair.end("first", 4) == ("second",)
    assert fair.start_tag("second") == 4
    assert fair.end("other", 0) == ()


def test_a_preempted_request_keeps_its_tag_and_is_charged_once():
    fair = FairShare()
    fair.arrive("a", NORMAL, "t", weight=1, cost_tokens=10)
    assert not fair.is_admitted("a")
    fair.admit("a")
    assert fair.is_admitted("a")
    assert fair.start_tag("a") == 0
    fair.arrive("b", NORMAL, "t", weight=1, cost_tokens=10)
    assert fair.start_tag("b") == 10


def test_classes_do_not_know_each_other():
    fair = FairShare()
    fair.arrive("a", PriorityClass.LOW, "t", weight=1, cost_tokens=1000)
    fair.admit("a")
    fair.arrive("b", NORMAL, "t", weight=1, cost_tokens=10)
    assert fair.start_tag("b") == 0


def test_tenants_that_are_owed_nothing_are_forgotten():
    server = Server()
    for n in range(10 * SWEEP_EVERY):
        server.send(f"t{n}", 10)
        server.send("regular", 10)
        server.serve()
        server.serve()
    assert len(server.fair._tenants[NORMAL]) <= 2 * SWEEP_EVERY


requests = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.integers(1, 500)), max_size=60
)


@given(requests, st.lists(st.integers(1, 400), min_size=40, max_size=80))
def test_while_two_tenants_wait_their_shares_differ_by_two_requests_at_most(others, costs):
    """The bound of the paper: with true costs nobody is further behind than one request of each."""
    weights = {"x": 1.0, "y": 2.5}
    server = Server()
    for n, cost in enumerate(costs):
        server.send("x" if n % 2 else "y", cost, weight=weights["x" if n % 2 else "y"])
    for tenant, tokens, expected in others:
        server.send(tenant, tokens, expected=expected)
    bound = sum(max(costs) / weight for weight in weights.values())
    while {tenant for tenant, _ in server.waiting.values()} >= {"x", "y"}:
        server.serve()
        shares = [server.served[tenant] / weight for tenant, weight in weights.items()]
        assert abs(shares[0] - shares[1]) <= bound + 1e-6


@given(requests, st.data())
def test_virtual_time_never_goes_back_and_all_are_served(sent, data):
    server = Server()
    served = 0
    before = 0.0
    for tenant, tokens, expected in sent:
        server.send(tenant, tokens, expected=expected)
        if data.draw(st.booleans()):
            server.serve()
            served += 1
        assert server.fair.virtual_time(NORMAL) >= before
        before = server.fair.virtual_time(NORMAL)
    while server.waiting:
        server.serve()
        served += 1
    assert served == len(sent)
