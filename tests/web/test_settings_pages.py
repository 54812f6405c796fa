"""The settings of pools, classes and prices: who changes them, the difference first, versions."""

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import ModelAlias, Pool
from controlplane.fleet.pool_services import pool_create
from controlplane.tenants.access import VIEWERS_GROUP, Role
from controlplane.tenants.models import ClassSettings, Membership
from controlplane.usage.models import ModelPrice
from tests.web.conftest import FakeWatch
from tests.web.ledger_rows import ROOT, tenant
from tests.web.reading import page, text_of
from web import settings_pool
from web.settings_fields import AT_START, Field, changes, read, shown, written


@pytest.fixture
def pool_row(watch: FakeWatch, db: None, monkeypatch: pytest.MonkeyPatch) -> Pool:
    # There is no store here to tell the pool process.
    monkeypatch.setattr("controlplane.fleet.pool_services.pools_publish_soon", lambda: None)
    monkeypatch.setattr("controlplane.fleet.pool_services.pool_keys_forget", lambda name: None)
    values = {"name": "chat", "served_model_name": "tiny", "instances": 2}
    return pool_create(access=ROOT, changes=values)


@pytest.fixture
def owners_client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("wanda"))
    return client


def form_of(html: str, action: str, **changed: str) -> dict[str, str]:
    """Returns what a browser would send of the form with this address; "": a switch is off."""
    form = re.search(rf'<form method="post" action="{action}[^"]*">.*?</form>', html, re.S)
    assert form is not None, action
    sent = {}
    for tag in re.findall(r"<input[^>]*>", form[0]):
        name, value = re.search(r' name="([^"]+)"', tag), re.search(r' value="([^"]*)"', tag)
        is_off = "checkbox" in tag and " checked" not in tag
        if name and not is_off:
            sent[name[1]] = value[1] if value else ""
    for name, options in re.findall(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', form[0]):
        chosen = re.search(r'<option value="([^"]*)" selected', options)
        sent[name] = chosen[1] if chosen else ""
    sent.pop("csrfmiddlewaretoken", None)
    sent |= changed
    return {name: value for name, value in sent.items() if value or name not in SWITCHES}


SWITCHES = ("is_enabled", "is_preemptible", "is_rolling")


def test_a_pool_has_every_setting_with_unit_and_default(
    pool_row: Pool, owners_client: Client
) -> None:
    html = page(owners_client, "/pools/chat/settings/")
    for field in settings_pool.fields_of(settings_pool.groups_of(settings.POOL)):
        assert f'name="{field.name}"' in html
        assert field.help
    text = text_of(html)
    assert "KV cache GiB 0.5 Of an engine" in text
    assert "Requests /min none Of all tenants together" in text


def test_saving_shows_the_difference_first(pool_row: Pool, owners_client: Client) -> None:
    url = "/pools/chat/settings/"
    sent = form_of(
        page(owners_client, url), url, kv_cache_gib="1.5", band_low_steps="200", concurrency="64"
    )
    review = owners_client.post(url, sent)
    text = text_of(review.content.decode())
    assert "Grows under 160 200 steps now, within a second" in text
    assert "At once no limit 64 now, within a second" in text
    assert "KV cache the environment's 1.5 GiB when the instances start next" in text
    assert Pool.objects.get(name="chat").version == 1
    again = form_of(review.content.decode(), url, reason="longer chats")
    answer = owners_client.post(url, {**again, "save": "1"})
    assert (answer.status_code, answer.headers["Location"]) == (303, url)
    row = Pool.objects.get(name="chat")
    assert (row.band_low_steps, row.concurrency, row.engine_settings) == (
        200.0, 64, {"kv_cache_gib": 1.5},
    )  # fmt: skip
    assert AuditEntry.objects.get(action="pool_update").reason == "longer chats"


def test_nothing_that_differs_is_nothing_to_save(pool_row: Pool, owners_client: Client) -> None:
    url = "/pools/chat/settings/"
    review = owners_client.post(url, form_of(page(owners_client, url), url))
    html = review.content.decode()
    assert "Nothing differs from what is saved." in html
    assert 'name="save"' not in html


def test_an_own_engine_setting_goes_back_to_the_environments(
    pool_row: Pool, owners_client: Client
) -> None:
    Pool.objects.update(engine_settings={"kv_cache_gib": 2.0})
    url = "/pools/chat/settings/"
    sent = form_of(page(owners_client, url), url, kv_cache_gib="", save="1")
    assert owners_client.post(url, sent).status_code == 303
    assert Pool.objects.get(name="chat").engine_settings == {}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"instances": "x"}, "is not a whole number", id="no-number"),
        pytest.param({"instances": "99"}, "must lie between", id="bounds"),
        pytest.param({"band_high_steps": "1"}, "must be above", id="band"),
        pytest.param({"kv_cache_gib": "-1"}, "expected a number of at least 0.01", id="engine"),
        pytest.param({"engine": "gpt"}, "expected vllm or simulated", id="engine-kind"),
        pytest.param({"served_model_name": "big"}, "only while the pool is off", id="running"),
        pytest.param({"zero_after_s": "60"}, "needs min_instances 0", id="zero"),
        pytest.param({"shrink_after_s": "9000000"}, "a week", id="too-long"),
        pytest.param({"hold_s": "601"}, "less than or equal to 600", id="hold"),
        pytest.param({"hold_max": "0"}, "must be at least 1", id="nobody-held"),
        pytest.param({"ttft_attainment_floor": "1.5"}, "less than or equal to 1", id="share"),
    ],
)
def test_a_wrong_setting_is_told_at_its_field(
    changed: Mapping[str, str], words: str, pool_row: Pool, owners_client: Client
) -> None:
    url = "/pools/chat/settings/"
    sent = form_of(page(owners_client, url), url, save="1", **changed)
    answer = owners_client.post(url, sent)
    assert answer.status_code == 400
    name, value = next(iter(changed.items()))
    html = answer.content.decode()
    assert re.search(rf'id="f-{name}-error">[^<]*{re.escape(words)}', html)
    assert f'name="{name}" value="{value}"' in html
    assert Pool.objects.get(name="chat").version == 1


def test_scaling_is_switched_on_with_its_times(pool_row: Pool, owners_client: Client) -> None:
    url = "/pools/chat/settings/"
    sent = form_of(
        page(owners_client, url), url,
        scaling_mode="act", shrink_after_s="90", min_instances="0", zero_after_s="600",
    )  # fmt: skip
    review = owners_client.post(url, sent)
    text = text_of(review.content.decode())
    assert "Mode off act now, within a second" in text
    assert "To zero after never 600 s now" in text
    again = form_of(review.content.decode(), url, save="1")
    assert owners_client.post(url, again).status_code == 303
    row = Pool.objects.get(name="chat")
    assert (row.scaling_mode, row.shrink_after_s, row.zero_after_s) == ("act", 90.0, 600.0)
    wrong = form_of(page(owners_client, url), url, scaling_mode="sometimes", save="1")
    answer = owners_client.post(url, wrong)
    assert answer.status_code == 400
    assert "is none of off, advise, act" in answer.content.decode()


def test_a_second_editor_is_told(pool_row: Pool, owners_client: Client) -> None:
    url = "/pools/chat/settings/"
    seen = page(owners_client, url)
    first = form_of(seen, url, concurrency="5", save="1")
    late = form_of(seen, url, concurrency="6", save="1")
    assert owners_client.post(url, first).status_code == 303
    answer = owners_client.post(url, late)
    assert answer.status_code == 409
    assert "was changed meanwhile" in text_of(answer.content.decode())
    assert Pool.objects.get(name="chat").concurrency == 5


def test_an_operator_changes_bounds_but_not_the_engine(
    pool_row: Pool, operators_client: Client
) -> None:
    url = "/pools/chat/settings/"
    html = page(operators_client, url)
    assert "needs the owner role" in html
    sent = form_of(html, url, instances="3", save="1")
    assert operators_client.post(url, sent).status_code == 303
    assert Pool.objects.get(name="chat").instances == 3
    sent = form_of(page(operators_client, url), url, kv_cache_gib="4", save="1")
    assert operators_client.post(url, sent).status_code == 403
    assert operators_client.post("/pools/", {"name": "new"}).status_code == 403
    assert operators_client.get("/pools/chat/remove/").status_code == 403


def test_aliases_come_and_go(pool_row: Pool, operators_client: Client) -> None:
    url = "/pools/chat/settings/"
    assert operators_client.post(url, {"alias": "small"}).status_code == 303
    assert ModelAlias.objects.get(alias="small").pool == pool_row
    assert "small" in text_of(page(operators_client, "/pools/"))
    taken = operators_client.post(url, {"alias": "tiny"})
    assert taken.status_code == 400
    assert "alias: tiny is the model of another pool" in text_of(taken.content.decode())
    assert operators_client.post(url, {"alias_remove": "small"}).status_code == 303
    assert not ModelAlias.objects.exists()
    assert operators_client.post(url, {"alias_remove": "small"}).status_code == 404


def test_an_owner_makes_a_pool_and_removes_it(pool_row: Pool, owners_client: Client) -> None:
    sent = {"name": "code", "model": "", "served_model_name": "coder", "instances": "12"}
    answer = owners_client.post("/pools/", {**sent, "reason": "a second model"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/pools/code/settings/")
    row = Pool.objects.get(name="code")
    assert (row.instances, row.max_instances, row.is_enabled) == (12, 12, False)
    url = "/pools/code/remove/"
    assert owners_client.post(url, {"name": "chat", "reason": "x"}).status_code == 400
    assert owners_client.post(url, {"name": "code", "reason": ""}).status_code == 400
    assert owners_client.post(url, {"name": "code", "reason": "unused"}).status_code == 303
    assert not Pool.objects.filter(name="code").exists()
    on = owners_client.post("/pools/chat/remove/", {"name": "chat", "reason": "x"})
    assert on.status_code == 400
    assert "switch the pool off" in text_of(on.content.decode())


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        pytest.param({"name": "Chat!"}, "name", id="name"),
        pytest.param({"served_model_name": "tiny"}, "served_model_name", id="taken"),
        pytest.param({"served_model_name": ""}, "served_model_name", id="empty"),
        pytest.param({"instances": "-1"}, "instances", id="instances"),
    ],
)
def test_a_pool_that_cannot_be_is_told_at_its_field(
    changed: Mapping[str, str], field: str, pool_row: Pool, owners_client: Client
) -> None:
    sent = {"name": "code", "model": "", "served_model_name": "coder", "instances": "1"}
    answer = owners_client.post("/pools/", {**sent, **changed})
    assert answer.status_code == 400
    assert f'id="f-{field}-error"' in answer.content.decode()
    assert Pool.objects.count() == 1


def test_a_class_is_changed_after_a_review(watch: FakeWatch, operators_client: Client) -> None:
    url = "/settings/classes/"
    form = {"name": "high", "headroom_tokens": "2000", "ageing_s": "", "is_preemptible": "on"}
    row = ClassSettings.objects.get(name="high")
    sent = {**form, "headroom_share": "", "version": str(row.version)}
    review = text_of(operators_client.post(url, sent).content.decode())
    assert "2000 tokens now, within a second" in review
    assert ClassSettings.objects.get(name="high").version == row.version
    answer = operators_client.post(url, {**sent, "save": "1", "reason": "bursts"})
    assert answer.status_code == 303
    assert ClassSettings.objects.get(name="high").headroom_tokens == 2000
    assert AuditEntry.objects.get(action="class_update").reason == "bursts"
    late = operators_client.post(url, {**sent, "headroom_tokens": "1", "save": "1"})
    assert late.status_code == 409
    both = {**sent, "headroom_share": "0.2", "version": "", "save": "1"}
    wrong = operators_client.post(url, both)
    assert wrong.status_code == 400
    assert "give tokens or a share" in text_of(wrong.content.decode())
    assert operators_client.post(url, {"name": "urgent"}).status_code == 404


def test_prices_are_set_by_the_owner_and_keep_their_history(
    watch: FakeWatch, owners_client: Client, operators_client: Client
) -> None:
    now = timezone.now()
    for days, prompt in ((-90, "0.1"), (-2, "0.2"), (20, "0.3")):
        ModelPrice.objects.create(
            model="tiny", valid_from=now + timedelta(days=days), prompt_per_million=prompt,
            cached_per_million="0", output_per_million="1",
        )  # fmt: skip
    sent = {
        "model": "big", "valid_from": "2026-06-01T00:00", "prompt_per_million": "1.25",
        "cached_per_million": "0.3", "output_per_million": "10", "reason": "list price",
    }  # fmt: skip
    assert operators_client.post("/settings/prices/", sent).status_code == 403
    assert owners_client.post("/settings/prices/", sent).status_code == 303
    row = ModelPrice.objects.get(model="big")
    assert (row.prompt_per_million, row.output_per_million) == (Decimal("1.25"), Decimal(10))
    assert row.valid_from.isoformat() == "2026-06-01T00:00:00+00:00"
    text = text_of(page(operators_client, "/settings/prices/"))
    states = re.findall(r"tiny \d{4}-\d\d-\d\d \d\d:\d\d:\d\d (To come|Now|before)", text)
    assert states == ["To come", "Now", "before"]
    assert "Needs the owner role." in text


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        pytest.param({"model": ""}, "e-model", id="model"),
        pytest.param({"valid_from": "soon"}, "e-from", id="time"),
        pytest.param({"prompt_per_million": "free"}, "f-prompt_per_million-error", id="number"),
        pytest.param({"output_per_million": "-1"}, "f-output_per_million-error", id="negative"),
    ],
)
def test_a_wrong_price_is_told_at_its_field(
    changed: Mapping[str, str], field: str, watch: FakeWatch, owners_client: Client
) -> None:
    sent = {
        "model": "big", "valid_from": "", "prompt_per_million": "1", "cached_per_million": "1",
        "output_per_million": "1",
    }  # fmt: skip
    answer = owners_client.post("/settings/prices/", {**sent, **changed})
    assert answer.status_code == 400
    assert f'id="{field}"' in answer.content.decode()
    assert not ModelPrice.objects.exists()


@pytest.mark.parametrize(
    "path", ["/pools/", "/pools/chat/settings/", "/settings/classes/", "/settings/prices/"]
)
def test_viewers_read_and_members_see_nothing(path: str, pool_row: Pool) -> None:
    viewer = User.objects.create_user("vera")
    viewer.groups.add(Group.objects.get_or_create(name=VIEWERS_GROUP)[0])
    member = User.objects.create_user("mia")
    Membership.objects.create(tenant=tenant("acme"), user=member, role=Role.OWNER.value)
    clients = {user.username: Client() for user in (viewer, member)}
    for user in (viewer, member):
        clients[user.username].force_login(user)
    assert "disabled" in page(clients["vera"], path)
    assert clients["vera"].post(path, {"name": "high"}).status_code == 403
    assert clients["mia"].get(path).status_code == 404
    assert clients["mia"].post(path).status_code == 404
    assert Client().get(path).status_code == 302


WHOLE = Field("n", "N", "h", "whole", is_optional=True)
NUMBER = Field("x", "X", "h", "number", "s", takes_effect=AT_START)
SWITCH = Field("on", "On", "h", "switch")


@given(value=st.integers(-(10**9), 10**9))
def test_what_is_written_is_read_back(value: int) -> None:
    values, errors = read([WHOLE, NUMBER], {"n": written(WHOLE, value), "x": f"{value:,}"})
    assert (values, errors) == ({"n": value, "x": float(value)}, {})


@given(text=st.text(max_size=40))
def test_no_text_breaks_a_form(text: str) -> None:
    values, errors = read([WHOLE, NUMBER, SWITCH], {"n": text, "x": text, "on": text})
    assert set(values) | set(errors) == {"n", "x", "on"}
    assert [s.value for s in shown([WHOLE], values, errors, {"n": text})] == [text]


def test_changes_name_what_takes_effect_when() -> None:
    found = changes([WHOLE, NUMBER, SWITCH], {"n": 1, "x": 2.0, "on": True},
                    {"n": None, "x": 2.5, "on": False})  # fmt: skip
    assert [(c.label, c.before, c.after, c.takes_effect) for c in found] == [
        ("N", "1", "none", "now"), ("X", "2", "2.5", "start"), ("On", "on", "off", "now"),
    ]  # fmt: skip


def test_a_services_error_finds_the_engine_setting() -> None:
    problem = ValidationError({"engine_settings": "kv_cache_gib='0': must be at least 0.01"})
    told = settings_pool.unfolded(problem).message_dict
    assert told == {"kv_cache_gib": ["must be at least 0.01"]}
