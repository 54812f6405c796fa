"""What a browser does when its web process is replaced: it goes on by itself, and at once."""

import pytest
from playwright.sync_api import Browser, expect

from tests.web.browsing import RECONNECTED, WAIT_MS, Site, opened

pytestmark = pytest.mark.slow


def test_a_live_page_connects_again_without_a_word(eight: Site, browser: Browser) -> None:
    with opened(eight, browser) as page:
        expect(page.locator("#live .word")).to_have_text("Live", timeout=WAIT_MS)
        page.evaluate(
            """() => {
                window.said = [];
                const strip = document.querySelector("#strip .headline");
                const note = () => window.said.push(strip.textContent);
                new MutationObserver(note).observe(strip, {childList: true, subtree: true});
            }"""
        )
        with page.expect_websocket() as second:
            page.evaluate("fetch('/test/replaced/')")
        # A tick on the new socket: the page is live over it.
        second.value.wait_for_event("framereceived", lambda frame: '"tick"' in str(frame))
        expect(page.locator("#live .word")).to_have_text("Live")
        assert "Connection lost" not in page.evaluate("window.said")


def test_an_answer_goes_on_at_the_next_server(eight: Site, browser: Browser) -> None:
    with opened(eight, browser, path="/playground/") as page:
        page.fill("#prompt", "Hello, replaced one")
        page.keyboard.press("Enter")
        answer = page.locator("article.assistant")
        expect(answer).to_have_attribute("aria-busy", "false", timeout=WAIT_MS)
        words = " ".join(f"word{i}" for i in range(40))
        expect(answer.locator(".text")).to_have_text(words)
        expect(answer.locator(".facts")).to_contain_text(RECONNECTED)
        expect(answer.locator(".alert")).to_have_count(0)
