"""Cordon, drain, stop, restart, release: dialogs, the drain panel, a node's page, the rows."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Pool, WantedInstance, WantedNode
from controlplane.tenants.access import VIEWERS_GROUP
from engine_pool.types import DrainProgress, InstanceName, InstanceState
from tests.web.conftest import FakeView, FakeWatch
from tests.web.reading import page, text_of

PoolMaker = Callable[[int], FakeWatch]
URL = "/instances/i-02/drain/"
FRESH_S = 600.0
"""What is reported stays fresh for so long, however busy the machine is."""
FORM = {"minutes": "10", "leftover": "wait", "reason": "kernel update", "version": "0"}


@pytest.fixture(autouse=True)
def rows(db: None) -> Pool:
    return Pool.objects.create(name="default", served_model_name="tiny", instances=8)


def change(watch: FakeWatch, name: str, **changes: Any) -> None:
    """Has the pool say something else of an instance."""
    view: FakeView = watch.view
    view.statuses[InstanceName(name)] = replace(view.statuses[InstanceName(name)], **changes)
    watch.observer._picture = None


def no_requests(watch: FakeWatch, name: str) -> None:
    load = watch.view.loads[InstanceName(name)]
    watch.view.loads[InstanceName(name)] = replace(
        load, running=(), waiting=(), used_tokens=0, at_unix_s=time.time() + FRESH_S
    )


def seen(watch: FakeWatch) -> None:
    """The pool process shows itself while the test runs."""
    until_unix_s = time.time() + FRESH_S
    watch.observer.probes = replace(watch.observer.probes, pool_sample_unix_s=until_unix_s)


def progress(left: int, **changes: Any) -> DrainProgress:
    now_unix_s = time.time()
    plain = DrainProgress(
        begun_unix_s=now_unix_s - 20, requests_at_start=40, left=left, moving=2, moved=20, ended=3,
        estimate_s=8.0,
    )  # fmt: skip
    return replace(plain, **changes)


def wish(instance: str, wanted: str = "drained", **changes: Any) -> WantedInstance:
    plain = {"by": "oscar", "reason": "new disks", "since": timezone.now() - timedelta(minutes=5)}
    return WantedInstance.objects.create(
        pool=Pool.objects.get(), instance=instance, wanted=wanted, **{**plain, **changes}
    )


def test_the_dialog_tells_the_effect_before(
    pool: PoolMaker, watch: FakeWatch, operators_client: Client
) -> None:
    policy = watch.observer.policy
    own = replace(policy.scaling, low_steps=32.0, high_steps=480.0)
    watch.observer.use(desired=8, policy=replace(policy, scaling=own))
    pool(8)
    for name, report in watch.view.loads.items():
        watch.view.loads[name] = replace(report, at_unix_s=time.time() + FRESH_S)
    load = watch.view.loads[InstanceName("i-02")]
    html = page(operators_client, URL)
    text = text_of(html)
    assert "Drain i-02?" in text
    assert (
        f"Its {len(load.running)} running and 5 waiting requests move to other instances. Nothing "
        "new is sent to it. Streams go on; each reader waits a moment once." in text
    )
    assert f"{len(load.running)} requests, {load.used_tokens:,} tokens of KV cache" in text
    assert "yes: the 3 others that serve go from freeness" in text
    assert "(band 32 to 480)" in text
    assert "old" in text.split("Report")[1].split("If something")[0]
    assert re.search(r'name="minutes" value="10"', html)
    assert re.search(r'value="wait" checked', html)
    assert 'name="version" value="0"' in html
    assert "Can be undone at any time." in text


def test_a_script_gets_the_form_alone(pool: PoolMaker, operators_client: Client) -> None:
    pool(8)
    part = page(operators_client, URL, hx_request="true")
    assert "<html" not in part
    assert part.lstrip().startswith('<form class="action-form')


def test_a_press_wants_it_and_leads_to_the_instance(
    pool: PoolMaker, operators_client: Client
) -> None:
    pool(8)
    answer = operators_client.post(URL, {**FORM, "leftover": "replay"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/instances/i-02/")
    row = WantedInstance.objects.get()
    assert (row.wanted, row.by, row.reason, row.leftover) == (
        "drained", "olga", "kernel update", "replay",
    )  # fmt: skip
    assert row.deadline is not None
    assert row.deadline - row.since == timedelta(minutes=10)
    audit = AuditEntry.objects.get()
    assert (audit.action, audit.object, audit.who) == ("instance_drain", "i-02", "olga")
    text = text_of(page(operators_client, "/audit/"))
    assert "instance drain" in text
    assert "kernel update" in text


def test_the_same_press_twice_is_one(pool: PoolMaker, operators_client: Client) -> None:
    pool(8)
    for _ in range(2):
        assert operators_client.post(URL, FORM).status_code == 303
    assert (WantedInstance.objects.get().version, AuditEntry.objects.count()) == (1, 1)


@pytest.mark.parametrize(
    ("action", "wanted"),
    [("cordon", "cordoned"), ("stop", "stopped"), ("restart", "serving"), ("replace", "serving")],
)
def test_other_actions_have_dialogs_too(
    pool: PoolMaker, operators_client: Client, action: str, wanted: str
) -> None:
    pool(8)
    url = f"/instances/i-02/{action}/"
    assert f"{action.capitalize()} i-02?" in text_of(page(operators_client, url))
    assert operators_client.post(url, FORM).status_code == 303
    row = WantedInstance.objects.get()
    assert (row.wanted, row.renew_before is not None) == (wanted, wanted == "serving")
    assert AuditEntry.objects.get().action == f"instance_{action}"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"reason": " "}, "reason: say why"),
        ({"minutes": "soon"}, "minutes: must be above 0"),
        ({"minutes": "0"}, "minutes: must be above 0"),
        ({"minutes": "99999"}, "minutes: must be above 0 and at most 10,080"),
        ({"minutes": "", "leftover": "replay"}, "minutes: replay happens at a deadline"),
        ({"leftover": "end"}, "confirm: type i-02, since answers may be cut off"),
    ],
)
def test_what_is_wrong_is_said_and_values_are_kept(
    pool: PoolMaker, operators_client: Client, form: dict[str, str], words: str
) -> None:
    pool(8)
    answer = operators_client.post(URL, {**FORM, **form})
    html = answer.content.decode()
    assert answer.status_code == 400
    assert words in text_of(html)
    assert not WantedInstance.objects.exists()
    if "reason" not in form:
        assert 'value="kernel update"' in html


def test_ending_answers_needs_the_name(pool: PoolMaker, operators_client: Client) -> None:
    pool(8)
    form = {**FORM, "leftover": "end", "confirm": "i-02"}
    assert operators_client.post(URL, form).status_code == 303
    assert WantedInstance.objects.get().leftover == "end"


def test_the_last_instance_is_told_and_needs_its_name(
    pool: PoolMaker, operators_client: Client
) -> None:
    watch = pool(2)
    change(watch, "i-01", state=InstanceState.LOST)
    html = page(operators_client, URL)
    assert "It is the last instance of pool default that serves" in text_of(html)
    assert 'data-grade="C"' in html
    assert "none: no other instance serves" in text_of(html)
    refused = operators_client.post(URL, FORM)
    assert refused.status_code == 400
    assert "confirm: type i-02, since no instance is left that serves." in text_of(
        refused.content.decode()
    )
    assert operators_client.post(URL, {**FORM, "confirm": "i-02"}).status_code == 303


def test_another_persons_wish_is_shown_and_not_replaced_unseen(
    pool: PoolMaker, operators_client: Client
) -> None:
    pool(8)
    wish("i-02")
    html = page(operators_client, "/instances/i-02/stop/")
    assert re.search(r'drained, by oscar since .* UTC: "new disks"', text_of(html))
    assert 'name="version" value="1"' in html
    late = operators_client.post("/instances/i-02/stop/", FORM)
    assert late.status_code == 409
    assert "This changed while you read it" in text_of(late.content.decode())
    assert 'name="version" value="1"' in late.content.decode()
    assert (
        operators_client.post("/instances/i-02/stop/", {**FORM, "version": "1"}).status_code == 303
    )
    assert WantedInstance.objects.get().wanted == "stopped"


@pytest.mark.parametrize(
    ("wanted", "changes", "verb", "words"),
    [
        ("cordoned", {}, "Uncordon i-02", "It takes requests again"),
        ("drained", {}, "Undrain i-02", "Nothing moves back by itself"),
        ("stopped", {}, "Start i-02", "A new engine starts"),
        ("serving", {"renew_before": timezone.now()}, "Cancel the restart of i-02", "goes on"),
    ],
)
def test_a_release_is_called_by_what_it_undoes(
    pool: PoolMaker, operators_client: Client, wanted: str, changes: Any, verb: str, words: str
) -> None:
    pool(8)
    wish("i-02", wanted, **changes)
    text = text_of(page(operators_client, "/instances/i-02/release/"))
    assert f"{verb}?" in text
    assert words in text
    sent = {"version": "1", "reason": ""}
    assert operators_client.post("/instances/i-02/release/", sent).status_code == 303
    assert not WantedInstance.objects.exists()


@pytest.mark.parametrize(
    "url", ["/instances/i-99/drain/", "/instances/i-02/explode/", "/nodes/x/drain/", "/nodes/x/"]
)
def test_what_there_is_not_is_404(pool: PoolMaker, operators_client: Client, url: str) -> None:
    pool(8)
    assert operators_client.get(url).status_code == 404


def test_only_operators_may(pool: PoolMaker, outsider: User) -> None:
    pool(8)
    viewer = User.objects.create_user("vera")
    viewer.groups.add(Group.objects.get_or_create(name=VIEWERS_GROUP)[0])
    client = Client()
    client.force_login(viewer)
    assert client.post(URL, FORM).status_code == 403
    assert client.get("/instances/i-02/").status_code == 200
    assert client.get("/nodes/node-01/").status_code == 200
    assert "Needs the operator role" in client.get("/instances/i-02/").content.decode()
    client.force_login(outsider)
    assert client.post(URL, FORM).status_code == 403
    assert not WantedInstance.objects.exists()


def test_the_panel_shows_what_is_left_and_why(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    seen(watch)
    wish("i-04", deadline=timezone.now() + timedelta(minutes=5), leftover="replay")
    change(watch, "i-04", wanted="drained", wanted_by="oscar", drain=progress(15))
    load = watch.view.loads[InstanceName("i-04")]
    text = text_of(page(operators_client, "/instances/i-04/"))
    count = len(load.running) + len(load.waiting)
    assert 'Drained is wanted by oscar: "new disks".' in text
    assert f"Left {count} of 40" in text
    for fact in ("Moving 2", "Moved 20", "Ended here 3", "Estimate about 8 s"):
        assert fact in text
    assert re.search(r"Rate [\d.]+ /s", text)
    assert re.search(r"Deadline in \d+ (min|s), then replay it elsewhere", text)
    assert f"Not safe to stop yet: {count} requests left." in text
    assert "waits for its turn to move, or is replayed elsewhere at the deadline" in text
    assert "Undrain…" in text
    assert "Safe to stop. Verified" not in text


def test_the_panel_ends_with_the_proof(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    seen(watch)
    wish("i-04")
    no_requests(watch, "i-04")
    verified = progress(0, moving=0, verified_unix_s=time.time(), estimate_s=0.0)
    change(watch, "i-04", state=InstanceState.DRAINED, wanted="drained", drain=verified)
    html = page(operators_client, "/instances/i-04/")
    text = text_of(html)
    assert steps_of(html) == [("done", "Draining"), ("done", "Verified empty")]
    assert re.search(
        r"Safe to stop\. Verified empty at \d\d:\d\d:\d\d ?: 0 requests, 0 blocks, 0 transfers\.",
        text,
    )
    # The pool process has not been seen since it was wanted.
    WantedInstance.objects.update(since=timezone.now() + timedelta(seconds=FRESH_S))
    html = page(operators_client, "/instances/i-04/")
    assert "Not safe to stop yet: the pool process has not confirmed it yet." in text_of(html)
    assert steps_of(html) == [("done", "Draining"), ("now", "Verified empty")]
    WantedInstance.objects.all().delete()
    assert "Safe to stop" not in text_of(page(operators_client, "/instances/i-04/"))


def steps_of(html: str) -> list[tuple[str, str]]:
    return re.findall(r'<li data-at="(\w+)"[^>]*>([^<]+)</li>', html)


def test_an_obstacle_stands_out(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    wish("i-04")
    change(
        watch, "i-04", wanted="drained",
        drain=progress(15, obstacle="no other instance has room"),
    )  # fmt: skip
    html = page(operators_client, "/instances/i-04/")
    assert "Nothing moves: no other instance has room." in text_of(html)
    assert watch.observer.look().rows["i-04"].tone == "warn"


def test_a_restart_shows_its_steps(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    wish("i-04", "serving", renew_before=timezone.now())
    change(watch, "i-04", drain=progress(15))
    html = page(operators_client, "/instances/i-04/")
    assert steps_of(html) == [
        ("now", "Draining"), ("ahead", "Verified empty"), ("ahead", "Stopping"),
        ("ahead", "Starting"), ("ahead", "Serving"),
    ]  # fmt: skip
    assert 'A new engine is wanted by oscar: "new disks".' in text_of(html)


def test_an_instance_offers_what_can_be_wanted_of_it(
    pool: PoolMaker, operators_client: Client
) -> None:
    pool(8)

    def offered() -> list[str]:
        html = page(operators_client, "/instances/i-02/")
        return re.findall(r'href="/instances/i-02/(\w+)/"', html)

    assert offered() == ["cordon", "drain", "restart", "stop"]
    row = wish("i-02", "cordoned")
    assert offered() == ["release", "drain", "restart", "stop"]
    WantedInstance.objects.filter(pk=row.pk).update(wanted="drained")
    assert offered() == ["release", "stop"]
    WantedInstance.objects.filter(pk=row.pk).update(wanted="stopped")
    assert offered() == ["release"]


def test_an_outdated_engine_is_told(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    change(watch, "i-02", is_outdated=True)
    text = text_of(page(operators_client, "/instances/i-02/"))
    assert "Its engine runs with other settings than the pool has now." in text


def test_a_crash_loop_is_a_state_of_its_own(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    change(watch, "i-06", failures=6, cause="exit code 1, restart in 8 s")
    row = watch.observer.look().rows["i-06"]
    assert (row.state, row.tone) == ("crash_loop", "bad")
    assert row.caption == "6 failures in a row · exit code 1, restart in 8 s"
    assert watch.observer.look().totals.failing == 1
    assert "Crash loop" in text_of(page(operators_client, "/cluster/"))


def test_a_row_tells_of_its_drain(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    change(watch, "i-04", wanted="drained", wanted_by="oscar", drain=progress(15))
    rows = watch.observer.look().rows
    assert rows["i-04"].caption.endswith("left · about 8 s · then safe to stop")
    verified = progress(0, verified_unix_s=time.time())
    change(watch, "i-04", state=InstanceState.DRAINED, drain=verified)
    assert watch.observer.look().rows["i-04"].caption == "safe to stop · wanted by oscar"
    change(watch, "i-05", wanted="cordoned", wanted_by="oscar")
    assert watch.observer.look().rows["i-05"].caption == "takes no new requests · wanted by oscar"
    html = page(operators_client, "/cluster/")
    assert 'data-wanted="cordoned"' in html
    assert 'href="/nodes/node-01/drain/"' in html


def test_a_node_is_drained_with_all_of_its_instances(
    pool: PoolMaker, operators_client: Client
) -> None:
    watch = pool(8)
    seen(watch)
    html = page(operators_client, "/nodes/node-01/")
    assert "3 instances" in text_of(html)
    assert re.findall(r'data-dialog href="/nodes/node-01/(\w+)/"', html) == [
        "cordon", "drain", "stop",
    ]  # fmt: skip
    text = text_of(page(operators_client, "/nodes/node-01/drain/"))
    assert "Drain node node-01?" in text
    assert "Instances that are placed here later are drained too." in text
    answer = operators_client.post("/nodes/node-01/drain/", FORM)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/nodes/node-01/")
    assert WantedNode.objects.get().wanted == "drained"
    text = text_of(page(operators_client, "/nodes/node-01/"))
    assert "Drained is wanted by olga since" in text
    assert "Not safe to switch off yet: i-01: serving: answers, and 2 more." in text
    held = text_of(page(operators_client, "/instances/i-01/"))
    assert "Drained is wanted of the whole node node-01 by olga" in held


def test_an_empty_node_is_safe_to_switch_off(pool: PoolMaker, operators_client: Client) -> None:
    watch = pool(8)
    seen(watch)
    WantedNode.objects.create(
        node="node-01", wanted="drained", by="oscar", since=timezone.now() - timedelta(minutes=5)
    )
    for name in ("i-01", "i-02", "i-03"):
        no_requests(watch, name)
        verified = progress(0, verified_unix_s=time.time())
        change(watch, name, state=InstanceState.DRAINED, wanted="drained", drain=verified)
    text = text_of(page(operators_client, "/nodes/node-01/"))
    assert "node-01 is empty. Safe to switch off." in text
    assert "The last of 3 instances was verified empty at" in text
    change(watch, "i-02", state=InstanceState.LOST, cause="exit code -9")
    assert "Safe to switch off" not in text_of(page(operators_client, "/nodes/node-01/"))


def test_a_node_without_an_instance_keeps_its_wish(
    pool: PoolMaker, operators_client: Client
) -> None:
    watch = pool(8)
    seen(watch)
    WantedNode.objects.create(node="gpu-off", wanted="stopped", by="oscar", since=timezone.now())
    text = text_of(page(operators_client, "/nodes/gpu-off/"))
    assert "No instance is here" in text
    sent = {"version": "1"}
    assert operators_client.post("/nodes/gpu-off/release/", sent).status_code == 303
    assert not WantedNode.objects.exists()
    assert operators_client.get("/nodes/gpu-off/").status_code == 404
