"""`/api/v1` of moves: what an operator's own tools ask for and get."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from controlplane.audit.models import AuditEntry
from controlplane.fleet import api_preflight, move_selectors, moves
from controlplane.fleet.models import MigrationRecord
from controlplane.fleet.preflight_run import PreflightRunning
from controlplane.fleet.preflight_values import PreflightReport
from engine_pool.errors import StoreUnavailable
from tests.controlplane.moving_pool import MovingPool, aborted, committed, report_of

Post = Callable[..., Any]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> MovingPool:
    made = MovingPool()
    for module in (moves, move_selectors):
        monkeypatch.setattr(module, "pool_client", lambda: made)
    made.serve("i-01", "i-02", "i-03", running={"i-01": ["r1", "0_chatcmpl-ab", "cmpl-x-0"]})
    return made


@pytest.fixture
def client(db: None) -> Client:
    made = Client()
    made.force_login(User.objects.create_user("olga", password="x", is_staff=True))
    return made


@pytest.fixture
def post(client: Client) -> Post:
    return lambda path, body=None: client.post(path, body or {}, content_type="application/json")


def test_a_move_is_accepted_and_says_where_to_watch_it(
    pool: MovingPool, client: Client, post: Post
) -> None:
    answer = post("/api/v1/requests/r1/migrate", {"destination": "i-03", "reason": "maintenance"})
    assert answer.status_code == 202
    body = answer.json()
    assert answer["Location"] == f"/api/v1/migrations/{body['migration_id']}"
    assert (body["state"], body["source"], body["destination"]) == ("asked", "i-01", "i-03")
    watched = client.get(answer["Location"])
    assert watched.status_code == 200
    assert watched.json()["reason"].startswith("operator olga: maintenance")


def test_without_a_destination_it_is_the_freest(pool: MovingPool, post: Post) -> None:
    pool.serve("i-02", running={"i-02": ["a", "b"]})
    assert post("/api/v1/requests/r1/migrate").json()["destination"] == "i-03"


@pytest.mark.parametrize("public", ["chatcmpl-ab", "cmpl-x"])
def test_a_public_id_of_one_engine_request_is_understood(
    public: str, pool: MovingPool, post: Post
) -> None:
    answer = post(f"/api/v1/requests/{public}/migrate")
    assert answer.status_code == 202
    assert public in answer.json()["request_id"]


def test_a_public_id_of_several_is_a_conflict_that_names_them(pool: MovingPool, post: Post) -> None:
    pool.serve("i-02", running={"i-02": ["1_chatcmpl-ab"]})
    answer = post("/api/v1/requests/chatcmpl-ab/migrate")
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["reason"]) == ("migration_refused", "ambiguous_request")
    assert "0_chatcmpl-ab, 1_chatcmpl-ab" in error["message"]


def test_an_unknown_request_is_a_404(pool: MovingPool, post: Post) -> None:
    answer = post("/api/v1/requests/nobody/migrate")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"
    assert "nobody" in answer.json()["error"]["message"]


def test_a_refusal_is_a_409_with_its_reason(pool: MovingPool, post: Post) -> None:
    pool.gate.refusal = ("no_blocks", "i-03 has 3 free blocks and needs 41")
    answer = post("/api/v1/requests/r1/migrate", {"destination": "i-03"})
    assert answer.status_code == 409
    assert answer.json()["error"] == {
        "message": "i-03 has 3 free blocks and needs 41",
        "type": "conflict_error",
        "param": None,
        "code": "migration_refused",
        "reason": "no_blocks",
    }


def test_an_instance_that_does_not_exist_is_refused_by_name(pool: MovingPool, post: Post) -> None:
    answer = post("/api/v1/requests/r1/migrate", {"destination": "i-99"})
    assert answer.status_code == 409
    assert answer.json()["error"]["reason"] == "no_such_instance"


def test_a_silent_source_is_a_503_that_says_when_to_ask_again(pool: MovingPool, post: Post) -> None:
    pool.gate.is_silent = True
    answer = post("/api/v1/requests/r1/migrate")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "instance_lost"
    assert int(answer["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        pytest.param({"destination": 5 * ["i-02"]}, "destination", id="a list"),
        pytest.param({"reason": "x" * 501}, "reason", id="too long"),
        pytest.param({"to": "i-02"}, "to", id="an unknown field"),
    ],
)
def test_a_bad_body_is_a_400_that_names_the_field(
    body: dict[str, Any], named: str, pool: MovingPool, post: Post
) -> None:
    answer = post("/api/v1/requests/r1/migrate", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named
    assert answer.json()["error"]["message"].startswith(f"{named}: ")
    assert not pool.gate.wishes


def test_a_body_that_is_no_object_is_a_400(pool: MovingPool, client: Client) -> None:
    for text in ("[1]", "{", '"i-02"'):
        answer = client.post("/api/v1/requests/r1/migrate", text, content_type="application/json")
        assert answer.status_code == 400, text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_only_operators_move_requests(pool: MovingPool, db: None) -> None:
    outsider = Client()
    assert outsider.post("/api/v1/requests/r1/migrate").status_code == 401
    outsider.force_login(User.objects.create_user("oscar", password="x"))
    for path in ("migrations", "migrations/m1", "migrations/preflight", "requests/r1/destinations"):
        assert outsider.get(f"/api/v1/{path}").status_code == 403, path
    for path in ("requests/r1/migrate", "migrations/m1/cancel", "migrations/preflight"):
        answer = outsider.post(f"/api/v1/{path}")
        assert answer.status_code == 403, path
        assert "operator" in answer.json()["error"]["message"]
    assert not pool.gate.wishes


def test_a_session_needs_the_csrf_token(pool: MovingPool, db: None) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(User.objects.create_user("olga", password="x", is_staff=True))
    refused = browser.post("/api/v1/requests/r1/migrate")
    assert refused.status_code == 403
    assert "CSRF" in refused.json()["error"]["message"]
    assert not pool.gate.wishes
    token = "a" * 32
    browser.cookies["csrftoken"] = token
    sent = browser.post(
        "/api/v1/requests/r1/migrate",
        {},
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    assert sent.status_code == 202


def test_the_destinations_are_listed_best_first_with_why_not(
    pool: MovingPool, client: Client
) -> None:
    pool.serve("i-02", running={"i-02": ["a", "b"]})
    body = client.get("/api/v1/requests/r1/destinations").json()
    assert (body["source"], body["freest"], body["is_queued"]) == ("i-01", "i-03", False)
    assert [d["instance"] for d in body["destinations"]] == ["i-03", "i-02"]
    assert body["destinations"][0]["freeness_now_steps"] is None, "idle is no number"
    assert client.get("/api/v1/requests/nobody/destinations").status_code == 404


def test_a_move_that_ended_has_its_stages_messages_and_times(
    pool: MovingPool, client: Client
) -> None:
    pool.view.apply(committed("m1", source_token_ms=(-3.0, 1.0), destination_token_ms=(10.0,)))
    body = client.get("/api/v1/migrations/m1").json()
    assert [(s["blocks"], s["bytes"], s["is_last"]) for s in body["stages"]] == [
        (32, 4096, False),
        (1, 128, True),
    ]
    assert (body["downtime_ms"], body["stage_count"], body["is_live"]) == (9.0, 2, True)
    assert body["source_token_ms"] == [-3.0, 1.0]
    assert body["ended_unix_s"] == pytest.approx(body["started_unix_s"] + 0.06)


def test_an_aborted_move_says_why(pool: MovingPool, client: Client) -> None:
    pool.view.apply(aborted("m1"))
    body = client.get("/api/v1/migrations/m1").json()
    assert (body["state"], body["abort_code"]) == ("aborted", "no_blocks")
    assert "needed 41" in body["abort_reason"]
    assert body["downtime_ms"] is None


def test_an_unknown_move_is_a_404(pool: MovingPool, client: Client, post: Post) -> None:
    for answer in (client.get("/api/v1/migrations/m9"), post("/api/v1/migrations/m9/cancel")):
        assert answer.status_code == 404
        assert "m9" in answer.json()["error"]["message"]


def test_moves_are_listed_newest_first_filtered_and_limited(
    pool: MovingPool, client: Client
) -> None:
    now_unix_s = time.time()
    for i in range(4):
        pool.view.apply(committed(f"m{i}", started_unix_s=now_unix_s - 100 + i))
    pool.view.apply(report_of("live", destination="i-03", started_unix_s=now_unix_s))

    def ids(query: str) -> list[str]:
        answer = client.get(f"/api/v1/migrations?{query}")
        return [m["migration_id"] for m in answer.json()["migrations"]]

    assert ids("") == ["live", "m3", "m2", "m1", "m0"]
    assert ids("state=committed&limit=2") == ["m3", "m2"]
    assert client.get("/api/v1/migrations?state=committed&limit=2").json()["left_out"] == 2
    assert ids("state=going_on") == ["live"]
    assert ids("instance=i-03") == ["live"]
    assert ids("request_id=nobody") == []
    assert ids(f"since={now_unix_s - 97.5}") == ["live", "m3"]
    assert ids("since=2999-01-01T00:00:00Z") == []


@pytest.mark.parametrize("query", ["state=x", "limit=0", "limit=201", "since=yesterday"])
def test_a_bad_filter_is_a_400_that_names_it(query: str, pool: MovingPool, client: Client) -> None:
    answer = client.get(f"/api/v1/migrations?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_move_can_be_cancelled_while_it_goes_on(pool: MovingPool, post: Post) -> None:
    pool.view.apply(report_of("m1"))
    answer = post("/api/v1/migrations/m1/cancel", {"reason": "wrong one"})
    assert answer.status_code == 202
    assert pool.gate.cancelled == [("actor-i-01", "m1")]
    assert AuditEntry.objects.get().reason == "wrong one"
    pool.view.apply(committed("m1"))
    assert post("/api/v1/migrations/m1/cancel").status_code == 409


@pytest.mark.django_db(transaction=True)
async def test_a_move_begins_in_the_event_loop_that_follows_the_pool(pool: MovingPool) -> None:
    seen: list[asyncio.AbstractEventLoop] = []
    plain = pool.gate.migrate

    async def migrate(actor: str, wish: dict[str, object]) -> tuple[str, str] | None:
        seen.append(asyncio.get_running_loop())
        return await plain(actor, wish)

    pool.gate.migrate = migrate  # type: ignore[method-assign]
    user = await User.objects.acreate(username="olga", is_staff=True)
    client = AsyncClient()
    await client.aforce_login(user)
    answer = await client.post("/api/v1/requests/r1/migrate", {}, content_type="application/json")
    assert answer.status_code == 202
    assert seen == [asyncio.get_running_loop()]
    assert await MigrationRecord.objects.acount() == 1


def preflight_report(**changes: Any) -> PreflightReport:
    plain = {
        "at_unix_s": time.time(),
        "ok": True,
        "verdict": "Moves work here.",
        "serving": ("i-01", "i-02"),
        "token_bytes": 46_080,
        "block_bytes": 737_280,
        "block_size_tokens": 16,
        "ways": (),
        "left_out": (),
        "slowest": None,
        "step_ms": 30.0,
        "is_step_assumed": True,
        "forecasts": (),
        "self_test": None,
        "obstacles": (),
    }
    return PreflightReport(**{**plain, **changes})


def test_the_last_preflight_is_shown_and_a_new_one_run(
    client: Client, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []

    def measure(lengths: Any) -> PreflightReport:
        asked.append(tuple(lengths))
        return preflight_report()

    monkeypatch.setattr(api_preflight, "preflight_get", lambda: None)
    monkeypatch.setattr(api_preflight, "preflight_measure", measure)
    assert client.get("/api/v1/migrations/preflight").status_code == 404
    answer = post("/api/v1/migrations/preflight", {"tokens": [64, 2000]})
    assert answer.status_code == 200
    assert answer.json()["token_bytes"] == 46_080
    assert asked == [(64, 2000)]
    assert post("/api/v1/migrations/preflight", {"tokens": [0]}).status_code == 400


def test_a_preflight_that_cannot_run_says_why(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status in ((PreflightRunning("busy"), 409), (StoreUnavailable("away"), 503)):

        def fail(lengths: Any, error: Exception = error) -> PreflightReport:
            raise error

        monkeypatch.setattr(api_preflight, "preflight_measure", fail)
        answer = post("/api/v1/migrations/preflight")
        assert answer.status_code == status
        assert answer.json()["error"]["message"] == str(error)
