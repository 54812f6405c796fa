"""`/api/v1`: drains of instances and nodes over REST, with roles, refusals and repeats."""

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.fixtures import Settings as DjangoSettings

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import WantedInstance, WantedNode
from controlplane.tenants.access import Role
from tests.controlplane.api_pool import ApiPool, serving
from tests.controlplane.api_world import Caller, a_pool, by_session, platform_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def pool(store_url: str, settings: DjangoSettings) -> Iterator[ApiPool]:
    made = a_pool()
    made.instances = 8
    made.save()
    with serving(store_url, settings, instances=8) as pool:
        yield pool


@pytest.fixture
def operator() -> Caller:
    return by_session("operator", platform_user(Role.OPERATOR))


def test_an_instance_says_what_is_wanted_and_what_is(operator: Caller) -> None:
    body = operator.call("GET", "instances/i-04/drain").json()
    assert (body["instance"], body["state"], body["wanted"]) == ("i-04", "draining", "serving")
    assert (body["wish"], body["is_safe_to_stop"]) == (None, False)
    assert body["left"] == len(body["requests"]) > 0


@pytest.mark.parametrize(
    ("verb", "wanted", "state"),
    [
        ("cordon", "cordoned", False),
        ("drain", "drained", False),
        ("stop", "stopped", False),
        ("restart", "serving", True),
        ("replace", "serving", True),
    ],
)
def test_a_press_is_202_with_where_to_look(
    operator: Caller, verb: str, wanted: str, state: bool
) -> None:
    answer = operator.call("POST", f"instances/i-01/{verb}", {"reason": "disks"})
    assert (answer.status_code, answer.headers["Location"]) == (
        202, "/api/v1/instances/i-01/drain",
    )  # fmt: skip
    body = answer.json()
    assert (body["wanted"], body["wanted_by"], body["is_renewing"]) == (
        wanted, "platform-operator", state,
    )  # fmt: skip
    assert (body["wish"]["version"], body["wish"]["reason"]) == (1, "disks")
    assert AuditEntry.objects.get().action == f"instance_{verb}"
    assert AuditEntry.objects.get().http_request_id


def test_a_drain_has_its_terms(operator: Caller) -> None:
    terms = {"deadline_s": 600, "leftover": "replay"}
    body = operator.call("POST", "instances/i-01/drain", terms).json()
    assert body["leftover"] == "replay"
    row = WantedInstance.objects.get()
    assert row.deadline is not None
    assert (row.deadline - row.since).total_seconds() == 600
    assert body["deadline_unix_s"] == pytest.approx(row.deadline.timestamp())


def test_the_same_key_does_it_once(operator: Caller) -> None:
    first = operator.call("POST", "instances/i-01/drain", {}, Idempotency_Key="k1")
    operator.call("POST", "instances/i-01/release", {})
    again = operator.call("POST", "instances/i-01/drain", {}, Idempotency_Key="k1")
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (202, "true")
    assert again.json() == first.json()
    assert not WantedInstance.objects.exists()


def test_a_release_lets_it_serve_and_may_be_repeated(operator: Caller) -> None:
    operator.call("POST", "instances/i-01/drain", {})
    for _ in range(2):
        answer = operator.call("POST", "instances/i-01/release", {})
        assert (answer.status_code, answer.json()["wanted"]) == (202, "serving")


def test_another_persons_wish_is_a_conflict_until_it_has_been_seen(operator: Caller) -> None:
    operator.call("POST", "instances/i-01/drain", {"reason": "disks"})
    owner = by_session("owner", platform_user(Role.OWNER))
    answer = owner.call("POST", "instances/i-01/stop", {})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "wished_by_another")
    assert "platform-operator wants i-01 drained" in error["message"]
    assert owner.call("POST", "instances/i-01/stop", {"version": 9}).status_code == 409
    assert owner.call("POST", "instances/i-01/stop", {"version": 1}).status_code == 202


def test_the_last_one_needs_force(operator: Caller) -> None:
    for name in ("i-01", "i-02", "i-03"):
        assert operator.call("POST", f"instances/{name}/drain", {}).status_code == 202
    serving = [i for i in ("i-07",) if operator.call("GET", f"instances/{i}").status_code == 200]
    assert serving == ["i-07"]
    answer = operator.call("POST", "instances/i-07/drain", {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "needs_force")
    assert operator.call("POST", "instances/i-07/drain", {"force": True}).status_code == 202


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": "soon"}, "deadline_s"),
        ({"leftover": "hope"}, "leftover"),
        ({"leftover": "end"}, "deadline_s"),
        ({"version": 0}, "version"),
        ({"until": 5}, "until"),
        ({"reason": "x" * 501}, "reason"),
    ],
)
def test_wrong_fields_are_named(operator: Caller, body: dict[str, Any], param: str) -> None:
    answer = operator.call("POST", "instances/i-01/drain", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not WantedInstance.objects.exists()


@pytest.mark.parametrize(
    "path", ["instances/i-77/drain", "nodes/nowhere", "nodes/nowhere/drain", "instances/x/cordon"]
)
def test_what_there_is_not_is_404(operator: Caller, path: str) -> None:
    method = "GET" if path == "nodes/nowhere" else "POST"
    answer = operator.call(method, path, {} if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_nodes_are_listed_drained_and_released(operator: Caller) -> None:
    nodes = operator.call("GET", "nodes").json()["data"]
    assert [n["node"] for n in nodes] == ["node-01", "node-02", "node-03"]
    assert [i["instance"] for i in nodes[0]["instances"]] == ["i-01", "i-02", "i-03"]
    answer = operator.call("POST", "nodes/node-01/drain", {"reason": "disks", "stop": True})
    assert (answer.status_code, answer.headers["Location"]) == (202, "/api/v1/nodes/node-01")
    body = answer.json()
    assert body["wish"]["wanted"] == WantedNode.objects.get().wanted == "stopped"
    assert {i["wanted"] for i in body["instances"]} == {"stopped"}
    assert body["is_safe_to_stop"] is False
    held = operator.call("POST", "instances/i-01/release", {})
    assert (held.status_code, held.json()["error"]["code"]) == (409, "held_by_node")
    assert operator.call("POST", "nodes/node-01/cordon", {}).json()["wish"]["version"] == 2
    assert operator.call("POST", "nodes/node-01/release", {}).json()["wish"] is None


def test_viewers_look_and_change_nothing() -> None:
    viewer = by_session("viewer", platform_user(Role.VIEWER))
    assert viewer.call("GET", "nodes").status_code == 200
    assert viewer.call("GET", "instances/i-01/drain").status_code == 200
    for path in ("instances/i-01/drain", "instances/i-01/release", "nodes/node-01/drain"):
        assert viewer.call("POST", path, {}).status_code == 403
    assert not WantedInstance.objects.exists()
