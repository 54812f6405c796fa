"""From an instance to the dialog to a move: facts, choices, refusals, permission."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.audit.models import AuditEntry
from tests.web import moves
from tests.web.conftest import FakeView, FakeWatch
from tests.web.reading import page, text_of

FORM = {"destination": "", "reason": "kernel update"}
URL = "/requests/i-02-r0/migrate/"


def test_the_dialog_shows_facts_and_destinations_by_freeness_afterwards(
    live: SimpleNamespace, operators_client: Client
) -> None:
    html = page(operators_client, URL)
    text = text_of(html)
    assert "Move i-02-r0 from i-02 ?" in text
    assert "400 tokens of KV cache" in text
    assert "old when this was made" in text
    places = re.findall(r'name="destination" value="([^"]*)"', html)
    plan = live.moves.plan("i-02-r0")
    assert places == ["", *(d.instance for d in plan.destinations if not d.why_not)]
    assert "i-04 cannot: it is draining" in text
    assert re.search(r'value="" required checked', html)


def test_the_size_is_in_mb_once_a_token_is_known(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.view.apply(moves.committed())
    assert "52.4 MB of KV cache, 400 tokens" in text_of(page(operators_client, URL))


def test_a_script_gets_the_form_alone(live: SimpleNamespace, operators_client: Client) -> None:
    part = page(operators_client, URL, hx_request="true")
    assert "<html" not in part
    assert part.lstrip().startswith('<form class="action-form"')


def test_a_press_begins_the_move_and_leads_to_its_page(
    live: SimpleNamespace, operators_client: Client
) -> None:
    answer = operators_client.post(URL, FORM)
    assert answer.status_code == 303
    (wish,) = live.gate.wishes
    assert answer.headers["Location"] == f"/migrations/{wish['migration_id']}/"
    assert wish["destination"] == live.moves.plan("i-02-r0").freest.instance
    assert wish["asked_by"] == "operator olga"
    assert "kernel update" in AuditEntry.objects.get().reason
    assert "Asked" in text_of(page(operators_client, answer.headers["Location"]))


def test_a_refusal_stands_where_the_action_was_and_values_are_kept(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.gate.refusal = ("no_blocks", "i-03 has 12 free blocks and 41 are needed.")
    answer = operators_client.post(URL, {**FORM, "destination": "i-03"})
    html = answer.content.decode()
    assert answer.status_code == 409
    assert "i-03 has 12 free blocks and 41 are needed." in html
    assert 'value="kernel update"' in html
    assert 'value="i-03" checked' in html


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"destination": "", "reason": "  "}, 400, "Say why"),
        ({"reason": "x"}, 400, "Choose where it goes"),
        ({"destination": "i-04", "reason": "x"}, 409, "i-04 cannot take it"),
        ({"destination": "i-99", "reason": "x"}, 409, "There is no instance i-99"),
    ],
)
def test_what_is_wrong_is_said(
    form: dict[str, str], status: int, words: str, live: SimpleNamespace, operators_client: Client
) -> None:
    answer = operators_client.post(URL, form)
    assert answer.status_code == status
    assert words in answer.content.decode()
    assert live.gate.wishes == []


def test_a_wanted_place_that_does_not_fit_is_not_silently_another(
    live: SimpleNamespace, operators_client: Client
) -> None:
    html = page(operators_client, f"{URL}?destination=i-04")
    assert "i-04 cannot take it: it is draining." in html
    assert " checked" not in html.split('<fieldset class="choices">')[1].split("</fieldset>")[0]


def test_a_move_can_be_undone_while_its_request_runs(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.view.apply(replace(moves.committed(), request_id="i-03-r0"))
    html = page(operators_client, "/migrations/mig-1/")
    assert 'data-dialog href="/requests/i-03-r0/migrate/?destination=i-02"' in html
    live.view.apply(replace(moves.committed(migration_id="mig-9"), request_id="gone"))
    assert "Move back" not in page(operators_client, "/migrations/mig-9/")


def test_an_engine_that_does_not_answer_leaves_it_open(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.gate.is_lost = True
    answer = operators_client.post(URL, FORM)
    assert answer.status_code == 503
    assert "Whether the move began will show under Migrations" in answer.content.decode()


def test_a_request_that_is_gone_is_said_so(live: SimpleNamespace, operators_client: Client) -> None:
    answer = operators_client.get("/requests/nobody/migrate/")
    assert answer.status_code == 404
    assert "No instance runs or queues a request nobody." in answer.content.decode()


def test_only_operators_move_and_only_with_a_token(
    live: SimpleNamespace, outsider: User, operator: User
) -> None:
    client = Client()
    client.force_login(outsider)
    for path in (URL, "/migrations/mig-1/cancel/", "/migrations/preflight/"):
        assert client.post(path, FORM).status_code == 403
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    for path in (URL, "/migrations/mig-1/cancel/", "/migrations/preflight/"):
        assert client.post(path, FORM).status_code == 403
    assert live.gate.wishes == []


def test_cancel_goes_back_to_the_page(live: SimpleNamespace, operators_client: Client) -> None:
    now_s = time.time()
    live.view.apply(replace(moves.going_on(100.0, started_unix_s=now_s), at_unix_s=now_s))
    answer = operators_client.post("/migrations/mig-1/cancel/")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/migrations/mig-1/")


def test_a_move_that_ended_meanwhile_cannot_be_cancelled(
    live: SimpleNamespace, operators_client: Client
) -> None:
    live.view.apply(moves.committed())
    answer = operators_client.post("/migrations/mig-1/cancel/")
    assert answer.status_code == 409
    assert "No move mig-1 goes on." in answer.content.decode()


# Requests of an instance


def test_an_operator_reaches_migrate_in_two_presses(
    live: SimpleNamespace, operators_client: Client
) -> None:
    cluster = page(operators_client, "/cluster/")
    assert 'href="/instances/i-02/"' in cluster
    instance = page(operators_client, "/instances/i-02/")
    assert 'href="/requests/i-02-r0/migrate/" data-dialog' in instance
    assert page(operators_client, "/requests/i-02-r0/migrate/")


def test_a_pool_of_two_shows_its_requests_on_the_cluster_page(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    html = page(operators_client, "/cluster/")
    assert html.count('data-dialog aria-label="Migrate i-01-') == 10
    assert "first 10 of" in html
    pool(3).observer._picture = None
    assert 'data-dialog aria-label="Migrate' not in page(operators_client, "/cluster/")


def test_a_request_on_its_way_has_no_second_button(
    live: SimpleNamespace, operators_client: Client
) -> None:
    now_s = time.time()
    report = moves.going_on(100.0, started_unix_s=now_s)
    live.view.apply(replace(report, at_unix_s=now_s, request_id="i-02-r0"))
    html = page(operators_client, "/instances/i-02/")
    assert "/requests/i-02-r0/migrate/" not in html
    assert '<a href="/migrations/mig-1/">to i-03</a>' in html


def test_requests_of_an_instance_without_a_report_are_unknown(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.report(1)
    view.loads.clear()
    assert "No report of it yet" in text_of(page(operators_client, "/instances/i-01/"))
    assert operators_client.get("/instances/i-77/").status_code == 404
