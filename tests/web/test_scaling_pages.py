"""The page about scaling: why so many instances, the decisions, one of them, mode and schedule."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import FleetEventRecord, Pool
from controlplane.fleet.pool_services import pool_create
from controlplane.scaling.events import event_of
from controlplane.scaling.models import ScalingDecision, ScalingState, ScalingWindow
from controlplane.tenants.access import VIEWERS_GROUP
from engine_pool.types import DrainProgress, InstanceName, InstanceState
from tests.web.conftest import FakeView, FakeWatch
from tests.web.ledger_rows import ROOT
from tests.web.reading import page, text_of

REASON = "average 92.0 < 160 for 30 s: 2 -> 3"


@pytest.fixture
def pool_row(watch: FakeWatch, db: None, monkeypatch: pytest.MonkeyPatch) -> Pool:
    # There is no store here to tell the pool process.
    monkeypatch.setattr("controlplane.fleet.pool_services.pools_publish_soon", lambda: None)
    # On a slow machine too, reports are young.
    monkeypatch.setattr("controlplane.scaling.live.REPORT_MAX_AGE_S", 3600.0)
    return pool_create(
        access=ROOT, changes={"name": "default", "served_model_name": "tiny", "instances": 2}
    )


@pytest.fixture
def viewers_client(db: None) -> Client:
    user = User.objects.create_user("vera", password="x")
    user.groups.add(Group.objects.get_or_create(name=VIEWERS_GROUP)[0])
    client = Client()
    client.force_login(user)
    return client


def decide(tick: int, kind: str = "grow", *, ago_s: float = 60.0, **more: Any) -> ScalingDecision:
    """Stores a decision."""
    values: dict[str, Any] = {
        "pool": "default", "at": timezone.now() - timedelta(seconds=ago_s), "tick": tick,
        "fence": 7, "mode": "act", "kind": kind, "signal": "freeness", "instances_before": 2,
        "instances_after": 2, "serving": 2, "low_steps": 160.0, "high_steps": 960.0,
        "average_steps": 92.0, "reason": REASON,
    }  # fmt: skip
    if kind == "grow":
        values |= {"instances_after": 3, "instance": "i-03", "add": 1, "is_applied": True}
    return ScalingDecision.objects.create(**{**values, **more})


def remember(pool: Pool, *, checked_ago_s: float = -300.0, **memory: float) -> None:
    """Stores what the loop remembers; by default its last check can never be too old."""
    checked = timezone.now() - timedelta(seconds=checked_ago_s)
    ScalingState.objects.create(pool=pool, tick=12, fence=7, checked_at=checked, memory=memory)


def scaled(pool: Pool, mode: str = "act", **more: Any) -> None:
    Pool.objects.filter(pk=pool.pk).update(scaling_mode=mode, **more)


def sentence_of(html: str) -> str:
    found = re.search(r'<p class="sentence">(.*?)</p>', html, re.S)
    assert found is not None
    return text_of(found[1])


def test_a_pool_that_people_size_says_so(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    view.report(2)
    html = page(operators_client, "/scaling/")
    assert sentence_of(html).startswith("2 instances, as people have set it: scaling is off")
    assert "With “advise” it says what it would do" in text_of(html)


def test_the_sentence_tells_the_last_change_and_what_is_due(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    scaled(pool_row, instances=3, grow_after_s=7200.0)
    remember(pool_row, under_since_s=timezone.now().timestamp() - 1200)
    decide(1, ago_s=3000.0)
    decide(2, "heartbeat", ago_s=5.0)
    view.report(2)
    html = page(operators_client, "/scaling/")
    said = sentence_of(html)
    assert said.startswith("3 instances, since 50 min ago: average 92.0 < 160 for 30 s: 2 → 3.")
    assert "is under the band 160–960, for 20 min of 2.0 h" in said  # noqa: RUF001
    text = text_of(html)
    assert "Wanted 3 1 to 8, the pool's bounds" in text
    assert "Serving 2 of 3 1 starting" in text


def test_advice_is_told_and_not_carried_out(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    scaled(pool_row, "advise")
    remember(pool_row)
    decide(1, ago_s=3000.0, is_applied=False, mode="advise")
    view.report(2)
    html = page(operators_client, "/scaling/")
    assert "scaling only advises. 50 min ago it would have made it 3:" in sentence_of(html)
    assert "Would grow 2 → 3" in text_of(html)
    assert "advice only" in html


def test_a_loop_that_stands_still_is_told_with_the_part_that_is_away(
    pool_row: Pool, view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    scaled(pool_row)
    remember(pool_row, checked_ago_s=1200.0)
    view.report(2)
    now = watch.observer.probes.observed_since_unix_s
    watch.observer.probes = replace(
        watch.observer.probes, pool_sample_unix_s=now + 9e9, worker_heartbeat_unix_s=now - 600,
        worker_alive_unix_s=now - 600,
    )  # fmt: skip
    html = page(operators_client, "/scaling/")
    assert "nobody has checked for 20 min" in sentence_of(html)
    assert "Celery does not answer, so the number of instances stays as it is." in html
    assert "Stands still" in html


def test_heartbeats_are_hidden_until_they_are_asked_for(
    pool_row: Pool, operators_client: Client
) -> None:
    decide(1)
    decide(2, "heartbeat", reason="average 300 in 160-960")
    decide(3, "refused", reason="wanted 3 -> 2, refused: survivors could not carry it")
    default = text_of(page(operators_client, "/scaling/"))
    assert "survivors could not carry it" in default
    assert "average 300 in 160-960" not in default
    assert "average 300 in 160-960" in text_of(page(operators_client, "/scaling/?kind=all"))
    assert "survivors" not in text_of(page(operators_client, "/scaling/?kind=changes"))
    answer = operators_client.get("/scaling/?kind=nonsense")
    assert answer.status_code == 400
    assert "kind: there is no" in text_of(answer.content.decode())


def test_older_decisions_follow_page_by_page(pool_row: Pool, operators_client: Client) -> None:
    for tick in range(60):
        decide(tick, ago_s=600.0 - tick)
    html = page(operators_client, "/scaling/")
    assert html.count('<tr data-kind="grow">') == 50
    older = re.search(r'href="(\?older=[^"]+)"', html)
    assert older is not None
    rest = page(operators_client, f"/scaling/{older[1]}")
    assert rest.count('<tr data-kind="grow">') == 10
    assert operators_client.get("/scaling/?older=x").status_code == 400


def test_the_chart_has_the_checks_and_marks_of_its_time(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    view.report(2)
    decide(1, "heartbeat", ago_s=1800.0, average_steps=200.0)
    decide(2, ago_s=1740.0)
    decide(3, "heartbeat", ago_s=600.0, average_steps=None, is_idle=True, instances_before=3,
           instances_after=3)  # fmt: skip
    decide(4, "heartbeat", ago_s=7200.0, average_steps=111.0)
    html = page(operators_client, "/scaling/")
    data = json.loads(html.split('id="scaling-data">')[1].split("</script>")[0])
    assert data["band"] == [160.0, 960.0]
    # 200 and 92, a gap, nothing ran, a gap, and now.
    assert data["average"][:5] == [200.0, 92.0, None, None, None]
    assert data["wanted"][:5] == [2, 3, None, 3, None]
    assert data["wanted"][-1] == 2
    assert [(m["kind"], m["words"]) for m in data["marks"]] == [("grow", "Grew 2 → 3")]
    day = page(operators_client, "/scaling/?range=24h")
    data = json.loads(day.split('id="scaling-data">')[1].split("</script>")[0])
    assert data["average"][0] == 111.0


def test_what_starts_and_what_drains_shows_how_far_it_is(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    view.report(2)
    one, two = (view.statuses[InstanceName(name)] for name in ("i-01", "i-02"))
    view.statuses[one.instance] = replace(
        one, state=InstanceState.STARTING, cause="first start, loads the model"
    )
    drain = DrainProgress(1.0, 12, left=9, moving=2, moved=3, ended=0, estimate_s=4.0)
    view.statuses[two.instance] = replace(two, state=InstanceState.DRAINING, drain=drain)
    text = text_of(page(operators_client, "/scaling/"))
    assert "i-01 starting loading ready first start, loads the model" in text
    assert "i-02 requests leave empty ends 9 left, 3 moved, about 4 s" in text


def test_a_decision_has_its_numbers_and_what_it_led_to(
    pool_row: Pool, operators_client: Client
) -> None:
    row = decide(41, ago_s=300.0, ttft_attainment=0.93)
    for seconds, kind, headline in (
        (1, "instance_starting", "i-03 starts"),
        (9, "x", "i-03 serves"),
    ):
        FleetEventRecord.objects.create(
            entry_id=str(seconds), at=row.at + timedelta(seconds=seconds), kind=kind,
            severity="info", instance="i-03", headline=headline,
        )  # fmt: skip
    decide(42, "heartbeat", ago_s=240.0, reason="average 300 in 160-960")
    html = page(operators_client, "/scaling/default-41/")
    text = text_of(html)
    assert "Grew: 2 → 3, i-03" in text
    assert "Average 92.0 < 160 for 30 s: 2 → 3." in unescape(html)
    assert "First tokens in time 93 %" in text
    assert "i-03 starts" in text
    assert "i-03 serves" in text
    assert "average 300 in 160-960" in text
    for key in ("default-40", "default-x", "nobody", "default-99999999999999999999"):
        assert operators_client.get(f"/scaling/{key}/").status_code == 404


def test_the_mode_is_switched_by_operators_alone_and_audited(
    pool_row: Pool, operators_client: Client, viewers_client: Client
) -> None:
    answer = operators_client.post("/scaling/mode/?range=24h", {"mode": "advise"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/scaling/?range=24h")
    assert Pool.objects.get().scaling_mode == "advise"
    entry = AuditEntry.objects.get(action="pool_update")
    assert (entry.before, entry.after) == ({"scaling_mode": "off"}, {"scaling_mode": "advise"})
    assert operators_client.post("/scaling/mode/", {"mode": "sometimes"}).status_code == 400
    assert viewers_client.post("/scaling/mode/", {"mode": "act"}).status_code == 403
    assert 'value="act"' in page(viewers_client, "/scaling/")
    assert "Needs the operator role" in page(viewers_client, "/scaling/")


def test_tenants_do_not_see_it(pool_row: Pool, outsider: User) -> None:
    client = Client()
    client.force_login(outsider)
    assert client.get("/scaling/").status_code in (403, 404)


def window_form(**changed: Any) -> dict[str, Any]:
    return {
        "name": "mornings", "begins": "08:00", "ends": "12:30", "timezone": "Europe/Berlin",
        "min_instances": "2", "max_instances": "6", "is_enabled": "on", "day": ["0", "1", "4"],
        **changed,
    }  # fmt: skip


def test_a_window_is_added_changed_and_removed(pool_row: Pool, operators_client: Client) -> None:
    url = "/pools/default/windows/"
    assert "No window yet" in page(operators_client, url)
    assert operators_client.post(url, window_form()).status_code == 303
    row = ScalingWindow.objects.get()
    assert (row.weekdays, row.min_instances, str(row.begins)) == (0b10011, 2, "08:00:00")
    text = text_of(page(operators_client, url))
    assert "Mon, Tue, Fri 08:00–12:30, Europe/Berlin 2 to 6" in text  # noqa: RUF001
    one = f"{url}{row.pk}/"
    html = page(operators_client, one)
    assert 'value="Europe/Berlin"' in html
    late = window_form(version="1", min_instances="4")
    assert operators_client.post(one, window_form(version="1", max_instances="")).status_code == 303
    assert ScalingWindow.objects.get().max_instances is None
    assert operators_client.post(one, late).status_code == 409
    assert operators_client.post(one, {"remove": "1", "reason": "summer"}).status_code == 303
    assert not ScalingWindow.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="scaling_window").order_by("at")
    assert [a.action.rpartition("_")[2] for a in actions] == ["create", "update", "remove"]
    assert operators_client.get(one).status_code == 404


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"timezone": "Mars/Olympus"}, "is no time zone", id="zone"),
        pytest.param({"begins": "25:00"}, "is no time of day", id="hour"),
        pytest.param({"day": []}, "must name a day", id="no-day"),
        pytest.param({"max_instances": "1"}, "must not be below min_instances", id="order"),
        pytest.param({"max_instances": "99"}, "must not be above the pool", id="above"),
        pytest.param({"min_instances": "0"}, "must not be below the pool", id="below"),
        pytest.param({"min_instances": "two"}, "is not a whole number", id="number"),
        pytest.param({"name": ""}, "must not be empty", id="name"),
    ],
)
def test_a_wrong_window_is_told_at_its_field(
    changed: dict[str, Any], words: str, pool_row: Pool, operators_client: Client
) -> None:
    answer = operators_client.post("/pools/default/windows/", window_form(**changed))
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not ScalingWindow.objects.exists()


def test_a_window_in_force_stands_on_the_page(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    view.report(2)
    ScalingWindow.objects.create(
        pool=pool_row, name="always", begins="00:00", ends="00:00", min_instances=2,
        max_instances=5,
    )  # fmt: skip
    text = text_of(page(operators_client, "/scaling/"))
    assert "2 to 5, window always" in text
    assert "always Now every day" in text


def test_the_cluster_page_has_the_pools_own_band_and_leads_here(
    pool_row: Pool, view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    policy = watch.observer.policy
    own = replace(policy, scaling=replace(policy.scaling, low_steps=32.0, high_steps=480.0))
    watch.observer.use(desired=2, policy=own)
    view.report(2)
    html = page(operators_client, "/cluster/")
    assert "scaling band 32–480 steps" in text_of(html)  # noqa: RUF001
    assert '"band":[32.0,480.0]' in html
    assert 'href="/scaling/?pool=default" title="Why this many instances?"' in html
    grid = text_of(page(operators_client, "/cluster/?view=grid"))
    assert "in the band 32–480" in grid  # noqa: RUF001


def test_requests_that_wait_for_a_pool_at_zero_are_on_the_tile_and_in_the_strip(
    pool_row: Pool, watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch.observer, "_held", lambda: 2)
    text = text_of(page(operators_client, "/cluster/"))
    assert text.count("2 requests wait for the pool's first instance") >= 2
    assert "Requests held 2" in text_of(page(operators_client, "/scaling/"))


def test_before_the_first_start_there_is_nothing_to_scale(
    watch: FakeWatch, operators_client: Client
) -> None:
    assert operators_client.get("/scaling/").status_code == 302


def test_times_are_utc(pool_row: Pool, operators_client: Client) -> None:
    decide(1)
    ScalingDecision.objects.update(at=datetime(2026, 5, 31, 12, 0, 5, tzinfo=UTC))
    assert 'title="2026-05-31T12:00:05' in page(operators_client, "/scaling/default-1/")


def test_events_lead_to_the_decision_that_they_tell_of(
    pool_row: Pool, view: FakeView, operators_client: Client
) -> None:
    row = decide(41)
    event = event_of(row)
    assert event is not None
    assert (event.headline, event.kind) == ("Scaled 2 → 3", "scaling_grow")
    view.events = [event]
    link = '/scaling/default-41/?pool=default"'
    assert link in page(operators_client, "/cluster/")
    FleetEventRecord.objects.create(
        entry_id="1", at=datetime.fromtimestamp(event.at_unix_s, UTC), kind=event.kind,
        severity="info", instance="i-03", headline=event.headline, detail=event.detail,
    )  # fmt: skip
    assert link in page(operators_client, "/events/")
    assert event_of(decide(42, "heartbeat")) is None
    advice = event_of(decide(43, is_applied=False))
    assert advice is not None
    assert advice.headline == "Advice: scale 2 → 3"
