"""Requests, SLOs, audit and settings in a real browser: the security policy is kept, filters and
"older" work without a reload, and everything works without scripts."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.web.browsing import WAIT_MS, Site, opened

pytestmark = pytest.mark.slow

ROWS = """
from datetime import timedelta
from django.utils import timezone
from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Pool
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.services import slo_set
from controlplane.usage.models import SloMinutes
from tests.web import ledger_rows as rows
acme = rows.tenant("acme")
rows.tenant("beta")
now = timezone.now()
targets = {"ttft_ms": 1000.0, "tpot_ms": 60.0, "objective": 0.9, "window_days": 7}
slo_set(access=rows.ROOT, tenant=acme, priority_class="normal", changes=targets)
made = [rows.record(acme, save=False, arrived_at=now - timedelta(minutes=i)) for i in range(70)]
RequestRecord.objects.bulk_create(made)
rows.move(rows.record(acme, request_id="chatcmpl-abc", arrived_at=now))
hour = now.replace(minute=0, second=0, microsecond=0)
SloMinutes.objects.bulk_create(
    SloMinutes(at=hour - timedelta(hours=i), length_s=3600, tenant=acme, priority_class="normal",
               requests=50, met=50 - i % 3, ttft_missed=i % 3, tpot_missed=0, failed=0)
    for i in range(2, 150)
)
for i in range(60):
    AuditEntry(who="olga", action="pause_rebalancing", object=f"o{i}", result="done",
               before={"limit": 1}, after={"limit": i}).save()
Pool.objects.get_or_create(name="default", defaults={"served_model_name": "tiny"})
"""
PAGES = (
    "/requests/", "/requests/chatcmpl-abc/", "/slo/", "/slo/acme/normal/", "/audit/",
    "/pools/default/settings/", "/pools/", "/settings/classes/", "/settings/prices/",
)  # fmt: skip


@pytest.fixture(scope="module")
def filled(site: Site) -> Iterator[Site]:
    site.shell(ROWS)
    site.report(2)
    yield site
    site.report(8)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_breaks_the_policy(filled: Site, browser: Browser, theme: str) -> None:
    with opened(filled, browser, theme) as page:
        for path in PAGES:
            page.goto(f"{filled.url}{path}")
            expect(page.locator("h1")).to_be_visible(timeout=WAIT_MS)
            if path == "/slo/acme/normal/":
                expect(page.locator("#chart-budget .trace")).not_to_have_count(0, timeout=WAIT_MS)


def test_filters_and_older_rows_come_without_a_reload(filled: Site, browser: Browser) -> None:
    with opened(filled, browser, path="/requests/") as page:
        page.evaluate("window.stays = true")
        ended = page.locator(".ended-table tbody tr")
        expect(ended).to_have_count(51)
        page.click(".older a")
        expect(ended).to_have_count(71)
        page.select_option('[name="slo"]', "ttft")
        page.wait_for_url("**slo=ttft**")
        expect(page.locator("#listing")).to_contain_text("No request that has ended matches")
        # The panel that was put in place is followed, too.
        page.click("text=Clear")
        page.wait_for_url("**/requests/")
        page.goto(f"{filled.url}/audit/")
        page.evaluate("window.stays = true")
        page.fill('[name="object"]', "o7")
        page.press('[name="object"]', "Enter")
        page.wait_for_url("**object=o7**")
        expect(page.locator("tr.entry")).to_have_count(1)
        expect(page.locator("tr.more")).to_be_hidden()
        page.click("tr.entry summary")
        expect(page.locator("tr.more")).to_contain_text("limit")
        assert page.evaluate("window.stays")


def test_a_request_that_runs_follows_its_reports(filled: Site, browser: Browser) -> None:
    with opened(filled, browser, path="/requests/?state=running") as page:
        page.click("#now tbody a >> nth=0")
        expect(page.locator("#request h1")).to_contain_text("Running", timeout=WAIT_MS)
        page.click("text=Cancel…")
        expect(page.locator("dialog#action[open] h2")).to_contain_text("Cancel")


def test_everything_works_without_scripts(filled: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{filled.url}/login/")
    page.fill('[name="username"]', "operator")
    page.fill('[name="password"]', "operator")
    page.click("main button, form button >> nth=0")
    page.goto(f"{filled.url}/requests/")
    page.select_option('[name="slo"]', "missed")
    page.click("button:has-text('Filter')")
    assert "slo=missed" in page.url
    page.goto(f"{filled.url}/settings/classes/")
    page.fill("#high-headroom_tokens", "1000")
    page.click("form:has(#high-headroom_tokens) button:has-text('Review')")
    expect(page.locator(".difference")).to_contain_text("1000")
    page.click("button:has-text('Save high')")
    expect(page.locator("#high-headroom_tokens")).to_have_value("1000")
    context.close()
