"""The pages in a real browser: no violation of the content security policy, a quiet console."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from engine_pool.types import InstanceName
from engine_pool.view import Bulletin
from tests.web import fake_pool, moves
from tests.web.browsing import RECONNECTED, ROOT, WAIT_MS, Site, opened

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_cluster_page_lives(eight: Site, browser: Browser, theme: str) -> None:
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_other_pages_open(eight: Site, browser: Browser, theme: str) -> None:
    with opened(eight, browser, theme) as page:
        for path in OTHERS:
            page.goto(eight.url + path)
            expect(page.locator("#live .word")).to_have_text("Live", timeout=WAIT_MS)
            assert page.evaluate("window.violations") == [], path


def test_a_move_is_followed_to_its_end(eight: Site, browser: Browser) -> None:
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


def test_a_request_is_moved_from_a_dialog_over_its_instance(eight: Site, browser: Browser) -> None:
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


def test_rebalancing_is_paused_and_resumed_from_dialogs(eight: Site, browser: Browser) -> None:
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


def test_the_api_reference_opens(eight: Site, browser: Browser) -> None:
    with opened(eight, browser, path="/api/v1/docs/") as page:
        expect(page.locator(".opblock")).not_to_have_count(0, timeout=WAIT_MS)


def test_an_instance_that_is_forgotten_leaves_the_page_and_a_new_one_joins(
    eight: Site, browser: Browser
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


def test_a_pool_that_falls_silent_turns_grey(eight: Site, browser: Browser) -> None:
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


def test_keys_filter_and_pause(eight: Site, browser: Browser) -> None:
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


def test_an_answer_goes_on_after_its_connection_broke(eight: Site, browser: Browser) -> None:
    with opened(eight, browser, path="/playground/") as page:
        page.fill("#prompt", "Hello")
        page.keyboard.press("Enter")
        answer = page.locator("article.assistant")
        expect(answer).to_have_attribute("aria-busy", "false", timeout=WAIT_MS)
        words = " ".join(f"word{i}" for i in range(40))
        expect(answer.locator(".text")).to_have_text(words)
        expect(answer.locator(".facts")).to_contain_text(RECONNECTED)
        expect(answer.locator(".chips")).to_have_text("i-01→ i-02 at token 20, 9 ms")
        expect(answer.locator("button.move")).to_be_hidden()


def test_a_running_answer_can_be_moved_and_a_refusal_is_shown_in_its_own_words(
    eight: Site, browser: Browser
) -> None:
    with opened(eight, browser, refused="404 (Not Found)", path="/playground/") as page:
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
    eight: Site, browser: Browser
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


def test_keys_open_the_dialog_of_the_row_that_has_the_focus(eight: Site, browser: Browser) -> None:
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


def test_older_events_join_the_list_without_leaving_the_page(eight: Site, browser: Browser) -> None:
    with opened(eight, browser) as page:
        page.click("#events .older a")
        expect(page.locator("#events .older")).to_have_text("No older events.")
        assert page.url.endswith("/cluster/")


def test_the_theme_can_be_chosen(eight: Site, browser: Browser) -> None:
    with opened(eight, browser) as page:
        page.click("details.menu summary")
        page.click("button[name=theme][value=dark]")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("count", [0, 2, 500])
def test_pools_of_other_sizes(site: Site, browser: Browser, count: int) -> None:
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
