"""The tenants' pages in a real browser: dialogs, a secret that stays until it is saved, limits with
their effect while they are typed; without scripts too.
"""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.web.browsing import WAIT_MS, Site, log_in, opened

pytestmark = pytest.mark.slow

MAKE = """
from controlplane.tenants.access import Access, Role
from controlplane.tenants.services import key_create, tenant_create
from django.contrib.auth.models import User
from controlplane.tenants.models import Membership
root = Access("root", platform=Role.OWNER)
acme = tenant_create(access=root, name="Acme", slug="acme", tokens_per_minute=10_000)
key_create(access=root, tenant=acme, name="Batch job")
mia = User.objects.create_user("mia", password="operator")
Membership.objects.create(tenant=acme, user=mia, role=Role.TENANT_ADMIN.value)
"""


@pytest.fixture(scope="module")
def acme(site: Site) -> Site:
    site.shell(MAKE)
    return site


def test_a_key_is_made_in_a_dialog_that_stays_until_it_is_saved(
    acme: Site, browser: Browser
) -> None:
    with opened(acme, browser, path="/tenants/acme/keys/") as page:
        page.get_by_text("New key…").click()
        page.fill("#id_name", "From the browser")
        page.get_by_text("Create the key").click()
        secret = page.locator("#secret")
        expect(secret).to_have_value(re.compile("^sk-"), timeout=WAIT_MS)
        text = secret.input_value()
        page.keyboard.press("Escape")
        expect(secret).to_be_visible()
        done = page.locator("#secret-done")
        expect(done).to_have_attribute("aria-disabled", "true")
        page.check("#saved")
        done.click()
        expect(page.get_by_role("rowheader", name="From the browser")).to_be_visible()
        assert text not in page.content()
        page.go_back()
        assert text not in page.content()


def test_what_cannot_be_taken_back_is_not_done_by_enter(acme: Site, browser: Browser) -> None:
    with opened(
        acme, browser, "dark", refused="400 (Bad Request)", path="/tenants/acme/keys/"
    ) as page:
        page.get_by_label("Revoke Batch job").click()
        expect(page.get_by_text("Cancel", exact=True)).to_be_focused()
        page.fill("#id_confirm", "Batch")
        page.fill("#id_reason", "a test")
        page.keyboard.press("Enter")
        page.locator("#action .danger").click()
        expect(page.locator("#id_confirm-error")).to_have_text("Expected Batch job.")
        expect(page.locator("#id_reason")).to_have_value("a test")
        page.fill("#id_confirm", "Batch job")
        page.locator("#action .danger").click()
        expect(page.locator("tr[data-ended=yes]")).to_contain_text("Revoked", timeout=WAIT_MS)


def test_the_effect_of_limits_is_shown_while_they_are_typed(acme: Site, browser: Browser) -> None:
    with opened(acme, browser, path="/tenants/acme/limits/") as page:
        page.fill("#id_concurrency", "3")
        page.press("#id_concurrency", "Tab")
        expect(page.locator("#preview")).to_contain_text("What changes", timeout=WAIT_MS)
        expect(page.locator("#preview")).to_contain_text("Requests at the same time")
        expect(page.locator("#id_concurrency")).to_have_value("3")
        page.get_by_text("Save the limits").click()
        page.wait_for_load_state()
        page.goto(f"{acme.url}/tenants/acme/")
        expect(page.locator(".meters")).to_contain_text("of 3")
        page.goto(f"{acme.url}/welcome/")
        expect(page.locator("#steps li")).to_have_count(4)


def test_a_member_works_without_scripts(acme: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{acme.url}/")
    log_in(page, "mia")
    page.wait_for_url("**/tenants/acme/")
    expect(page.locator("#side")).not_to_contain_text("Cluster")
    _make_key(page)
    context.close()


def _make_key(page: Page) -> None:
    page.click("#side a:has-text('Keys')")
    page.get_by_text("New key…").click()
    page.fill("#id_name", "By hand")
    page.get_by_text("Create the key").click()
    expect(page.locator("#secret")).to_have_value(re.compile("^sk-"))
    page.click("#secret-done")
    expect(page.get_by_role("rowheader", name="By hand")).to_be_visible()
