"""The What if pages in a real browser: a run from the form to its charts, live and without scripts.

The runs are carried out here, in the test's process, on the site's own database: the worker's part.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.web.browsing import ROOT, WAIT_MS, Site, log_in, opened

pytestmark = pytest.mark.slow

CHARTS = ("freeness", "first", "requests", "free", "events")


# Reads Python as lines of JSON, and says what came of each.
_LOOP = """
import json, os, sys, traceback
import django
django.setup()
for line in sys.stdin:
    try:
        exec(json.loads(line), {})
        print("done", flush=True)
    except BaseException:
        print(json.dumps(traceback.format_exc()), flush=True)
"""


class Worker:
    """Carries out runs of the site in a process of its own, as Celery's worker would."""

    def __init__(self, site: Site) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-c", _LOOP),
            cwd=ROOT,
            env={**site.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> None:
        """Carries out the run that waits."""
        self.shell(
            "from controlplane.whatif.apart import simulate_apart\n"
            "from controlplane.whatif.runner import run_next\n"
            "assert run_next(simulate_apart) is not None"
        )

    def shell(self, code: str) -> None:
        """Executes Python there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def process(site: Site) -> Iterator[Worker]:
    made = Worker(site)
    yield made
    made.stop()


@pytest.fixture
def worker(eight: Site, process: Worker) -> Iterator[Worker]:
    yield process
    process.shell(
        "from controlplane.whatif.models import SimulationRun; SimulationRun.objects.all().delete()"
    )


def ask(page: Page, site: Site, **fields: str) -> None:
    """Sends the form with some values changed; ends on the run's page."""
    page.goto(f"{site.url}/whatif/")
    for name, value in {"workload.requests": "150", **fields}.items():
        page.fill(f'[name="{name}"]', value)
    page.click("button:has-text('Simulate')")
    page.wait_for_url("**/whatif/*/")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_run_goes_from_the_form_to_its_charts_without_a_reload(
    eight: Site, worker: Worker, browser: Browser, theme: str
) -> None:
    with opened(eight, browser, theme) as page:
        ask(page, eight, **{"pool.instances": "3"})
        page.evaluate("window.stays = true")
        expect(page.locator("#run .badge")).to_have_text("Queued", timeout=WAIT_MS)
        worker.run()
        expect(page.locator("#run .badge")).to_have_text("Done", timeout=WAIT_MS)
        for key in CHARTS:
            expect(page.locator(f"#chart-{key} .trace")).not_to_have_count(0, timeout=WAIT_MS)
        expect(page.locator(".sentence")).to_contain_text(
            "the P99 time to first token", timeout=WAIT_MS
        )
        assert page.evaluate("window.stays")


def test_the_list_shows_how_far_a_run_is_while_it_runs(
    eight: Site, worker: Worker, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        ask(page, eight)
        page.goto(f"{eight.url}/whatif/")
        row = page.locator("#runs tbody tr")
        expect(row).to_contain_text("Queued", timeout=WAIT_MS)
        worker.shell(
            "from django.utils import timezone\n"
            "from controlplane.whatif import services\n"
            "run = services.run_claim(now=timezone.now())\n"
            "assert services.run_beat(run=run, share=0.42, now=timezone.now())"
        )
        expect(row.locator("progress")).to_have_attribute("value", "0.420", timeout=WAIT_MS)
        expect(row).to_contain_text("42 %", timeout=WAIT_MS)


def test_a_running_run_is_cancelled_by_its_button(
    eight: Site, worker: Worker, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        ask(page, eight)
        page.click("text=Cancel the run")
        expect(page.locator("#run .badge")).to_have_text("Cancelled", timeout=WAIT_MS)
        expect(page.locator(".sentence")).to_contain_text("Cancelled by operator", timeout=WAIT_MS)
        page.click("text=Change and run again")
        expect(page.locator('[name="workload.requests"]')).to_have_value("150", timeout=WAIT_MS)


def test_a_wrong_value_has_its_reason_under_it_and_the_focus_reaches_it(
    eight: Site, worker: Worker, browser: Browser
) -> None:
    with opened(eight, browser, refused="400 (Bad Request)", path="/whatif/") as page:
        page.fill('[name="pool.instances"]', "four")
        page.fill('[name="workload.rate_per_s"]', "-1")
        page.click("button:has-text('Simulate')")
        expect(page.locator("#f-pool-instances-error")).to_contain_text(
            "got “four”", timeout=WAIT_MS
        )
        expect(page.locator("#f-workload-rate_per_s-error")).to_contain_text(
            "Expected a number", timeout=WAIT_MS
        )
        field = page.get_by_label("Instances", exact=True)
        expect(field).to_have_value("four", timeout=WAIT_MS)
        expect(field).to_have_attribute("aria-invalid", "true", timeout=WAIT_MS)


def test_without_scripts_the_tables_have_the_result(
    eight: Site, worker: Worker, browser: Browser
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{eight.url}/login/?next=/cluster/")
    log_in(page)
    ask(page, eight)
    worker.run()
    page.reload()
    expect(page.locator(".no-script")).to_be_visible(timeout=WAIT_MS)
    page.click("text=What if, as a table")
    expect(page.locator(".time-table[open] tbody tr")).to_have_count(12, timeout=WAIT_MS)
    expect(page.locator("h2:has-text('By class')")).to_be_visible(timeout=WAIT_MS)
    context.close()


def test_nothing_is_wider_than_a_telephone(eight: Site, worker: Worker, browser: Browser) -> None:
    with opened(eight, browser) as page:
        ask(page, eight)
        worker.run()
        page.set_viewport_size({"width": 390, "height": 844})
        for path in (page.url, f"{eight.url}/whatif/"):
            page.goto(path)
            expect(page.locator("h1")).to_be_visible(timeout=WAIT_MS)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
