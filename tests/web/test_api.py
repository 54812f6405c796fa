"""`/api/v1`: the picture as JSON, its schema, and errors in one shape."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.test import Client
from django.urls import URLResolver, get_resolver

from tests.web import fake_pool
from tests.web.conftest import FakeView, FakeWatch


def test_the_snapshot_agrees_with_the_picture(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    watch = pool(8)
    body = operators_client.get("/api/v1/snapshot").json()
    assert body["totals"]["running"] == watch.observer.look().totals.running
    assert [i["name"] for i in body["instances"]] == list(watch.observer.look().rows)
    assert {p["key"] for p in body["parts"]} == {
        "store", "ray", "pool", "engines", "database", "worker", "beat",
    }  # fmt: skip
    draining = next(i for i in body["instances"] if i["state"] == "draining")
    assert draining["freeness_steps"] is None
    assert draining["virtual_tokens"] is None


def test_instances_can_be_filtered_and_found(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(8)
    lost = operators_client.get("/api/v1/instances?state=lost").json()
    assert [i["name"] for i in lost] == ["i-06"]
    assert operators_client.get("/api/v1/instances/i-06").json()["caption"].startswith("exit code")


def test_an_unknown_instance_is_a_404_that_names_it(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(1)
    answer = operators_client.get("/api/v1/instances/i-99")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert "i-99" in error["message"]
    assert error["param"] == "name"


def test_events_come_newest_first_and_limited(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.events = fake_pool.events_of(1_000_000.0)[::-1]
    events = operators_client.get("/api/v1/events?limit=2").json()
    assert [e["headline"] for e in events] == ["i-06 is lost", "The store did not answer for 3 s"]


@pytest.mark.parametrize("limit", ["0", "51", "x", "-1", "1.5"])
def test_a_bad_limit_is_a_400_that_names_the_field(
    limit: str, watch: FakeWatch, operators_client: Client
) -> None:
    answer = operators_client.get(f"/api/v1/events?limit={limit}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("limit:")
    assert answer.json()["error"]["param"] == "limit"


def test_the_history_has_a_point_a_sample(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    watch = pool(2)
    watch.samples = [fake_pool.sample_of(2, seq, 1_000_000.0 + seq) for seq in range(3)]
    body = operators_client.get("/api/v1/history").json()
    assert body["series"] == ["i-01", "i-02"]
    assert len(body["points"]) == 3
    assert body["points"][2]["output_tokens_per_s"] > 0


def test_nothing_can_be_changed(watch: FakeWatch, operators_client: Client) -> None:
    for path in ("/api/v1/snapshot", "/api/v1/instances", "/api/v1/events"):
        assert operators_client.post(path).status_code == 405


def test_the_schema_describes_every_path(watch: FakeWatch, operators_client: Client) -> None:
    paths = operators_client.get("/api/v1/schema/?format=json").json()["paths"]
    own = {"/api/v1/schema/", "/api/v1/docs/"}
    assert set(paths) == set(_api_paths(get_resolver())) - own
    assert "/api/v1/requests/{request_id}/migrate" in paths
    assert "/api/v1/tenants/{slug}/keys" in paths


def _api_paths(resolver: URLResolver, prefix: str = "/") -> Iterator[str]:
    for entry in resolver.url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _api_paths(entry, path)
        elif path.startswith("/api/v1/"):
            yield re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)


def test_the_reference_page_loads_only_from_here(
    watch: FakeWatch, operators_client: Client
) -> None:
    html = operators_client.get("/api/v1/docs/").content.decode()
    assert "swagger-ui" in html
    assert "https://" not in html


def test_requests_are_listed_with_their_instances(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    watch = pool(4)
    names = list(watch.observer.look().rows)
    load = next(x for n in names if (x := watch.observer.load(n)) and x.running)
    body = operators_client.get(f"/api/v1/requests?instance={load.instance}&state=running").json()
    assert [r["request_id"] for r in body["requests"]] == [r.request_id for r in load.running]
    assert body["requests"][0]["kv_tokens"] == load.running[0].kv_tokens
    one = operators_client.get("/api/v1/requests?limit=1").json()
    everything = operators_client.get("/api/v1/requests?limit=1000").json()
    assert one["left_out"] == len(everything["requests"]) - 1


@pytest.mark.parametrize(
    ("query", "field"),
    [("state=busy", "state"), ("instance=i-77", "instance"), ("limit=0", "limit")],
)
def test_a_bad_filter_of_requests_names_the_field(
    query: str, field: str, pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    answer = operators_client.get(f"/api/v1/requests?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
