"""The page about scaling in a real browser: its chart, what comes live, nothing too wide."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.web.browsing import WAIT_MS, Site, opened
from tests.web.test_whatif_browser import Worker

pytestmark = pytest.mark.slow

SEED = """
from datetime import timedelta
from django.utils import timezone
from controlplane.fleet.models import Pool
from controlplane.scaling.models import ScalingDecision
Pool.objects.get_or_create(name="default", defaults={
    "served_model_name": "tiny", "instances": 8, "scaling_mode": "advise"})
ScalingDecision.objects.all().delete()
for tick, (ago_s, kind, after) in enumerate(
    [(1500, "heartbeat", 2), (1200, "grow", 3), (1140, "heartbeat", 2), (60, "refused", 2)]):
    ScalingDecision.objects.create(
        pool="default", at=timezone.now() - timedelta(seconds=ago_s), tick=tick, fence=1,
        mode="advise", kind=kind, signal="freeness", instances_before=2, instances_after=after,
        serving=2, low_steps=160, high_steps=960, average_steps=90 + tick,
        reason=f"reason of {kind} {tick}")
"""
MORE = """
from django.utils import timezone
from controlplane.scaling.models import ScalingDecision
ScalingDecision.objects.create(
    pool="default", at=timezone.now(), tick=9, fence=1, mode="advise", kind="shrink",
    signal="freeness", instances_before=2, instances_after=1, serving=2, low_steps=160,
    high_steps=960, average_steps=1200, reason="reason that came later")
"""


@pytest.fixture(scope="module")
def process(site: Site) -> Iterator[Worker]:
    made = Worker(site)
    made.shell(SEED)
    yield made
    made.stop()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_is_drawn_with_band_and_marks(
    eight: Site, process: Worker, browser: Browser, theme: str
) -> None:
    with opened(eight, browser, theme, path="/scaling/") as page:
        expect(page.locator("#chart-scaling .trace")).to_have_count(3, timeout=WAIT_MS)
        expect(page.locator("#chart-scaling")).to_contain_text("Would grow 2 → 3", timeout=WAIT_MS)
        expect(page.locator(".decisions-table tbody tr")).to_have_count(2, timeout=WAIT_MS)
        page.click("text=As a table")
        # Four checks, and how it is now.
        expect(page.locator(".time-table tbody tr")).to_have_count(5, timeout=WAIT_MS)
        page.click("a:has-text('With heartbeats')")
        expect(page.locator(".decisions-table tbody tr")).to_have_count(4, timeout=WAIT_MS)
        page.click("a:has-text('Would grow')")
        expect(page.locator("h1")).to_contain_text("Would grow: 2 → 3", timeout=WAIT_MS)


def test_a_decision_comes_by_itself_and_nothing_is_wider_than_a_telephone(
    eight: Site, process: Worker, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        page.keyboard.press("g")
        page.keyboard.press("n")
        page.wait_for_url("**/scaling/*")
        expect(page.locator(".decisions-table tbody tr")).to_have_count(2, timeout=WAIT_MS)
        page.evaluate("window.stays = true")
        process.shell(MORE)
        row = page.locator(".decisions-table tbody tr").first
        expect(row).to_contain_text("reason that came later", timeout=WAIT_MS)
        expect(page.locator("#chart-scaling")).to_contain_text("Would shrink", timeout=WAIT_MS)
        assert page.evaluate("window.stays")
        page.get_by_role("button", name="Off").click()
        expect(page.locator("h1 .badge")).to_have_text("Off", timeout=WAIT_MS)
        page.set_viewport_size({"width": 390, "height": 844})
        for path in ("/scaling/", "/scaling/default-1/", "/pools/default/windows/"):
            page.goto(f"{eight.url}{path}")
            expect(page.locator("h1")).to_be_visible(timeout=WAIT_MS)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
