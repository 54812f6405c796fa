"""Who sees which page: every page against every role, and what the navigation offers."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import resolve

from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import VIEWERS_GROUP, Access, Role
from controlplane.tenants.models import ApiKey, Membership, Tenant
from controlplane.tenants.services import key_create, tenant_create
from tests.web.conftest import FakeWatch

ROOT = Access("root", platform=Role.OWNER)
PEOPLE = (
    "stranger", "nobody", "viewer", "operator", "owner",
    "member_viewer", "member_operator", "member_admin", "member_owner", "other_owner",
)  # fmt: skip
PAGES: dict[str, tuple[int, ...]] = {
    # Nobody; the platform's viewer, operator, owner; a member as viewer, operator, admin, owner;
    # another tenant's owner.
    "/cluster/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/instances/i-01/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/nodes/node-01/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/nodes/node-01/drain/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
    "/migrations/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/migrations/preflight/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/whatif/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/status/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/events/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/live/snapshot/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/rebalancing/pause/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
    "/requests/req-1/migrate/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
    "/welcome/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
    "/playground/": (403, 403, 200, 200, 403, 200, 200, 200, 200),
    "/requests/": (403, 200, 200, 200, 200, 200, 200, 200, 200),
    "/requests/now/": (403, 200, 200, 200, 200, 200, 200, 200, 200),
    "/slo/": (403, 200, 200, 200, 200, 200, 200, 200, 200),
    "/slo/acme/normal/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/slo/-/normal/": (403, 200, 200, 200, 200, 200, 200, 200, 200),
    "/audit/": (403, 200, 200, 200, 403, 403, 200, 200, 200),
    "/audit/export.csv": (403, 200, 200, 200, 403, 403, 200, 200, 200),
    "/pools/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/settings/classes/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/settings/prices/": (403, 200, 200, 200, 404, 404, 404, 404, 404),
    "/tenants/": (403, 200, 200, 200, 200, 200, 200, 200, 200),
    "/tenants/~new/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
    "/tenants/acme/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/keys/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/keys/new/": (403, 403, 200, 200, 403, 403, 200, 200, 404),
    "/tenants/acme/keys/{key}/": (403, 403, 200, 200, 403, 403, 200, 200, 404),
    "/tenants/acme/keys/{key}/rotate/": (403, 403, 200, 200, 403, 403, 200, 200, 404),
    "/tenants/acme/keys/{key}/revoke/": (403, 403, 200, 200, 403, 403, 200, 200, 404),
    "/tenants/acme/limits/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/slo/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/slo/normal/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
    "/tenants/acme/usage/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/usage.csv": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/members/": (403, 200, 200, 200, 200, 200, 200, 200, 404),
    "/tenants/acme/members/~add/": (403, 403, 200, 200, 403, 403, 200, 200, 404),
    "/tenants/acme/members/mo/": (403, 403, 200, 200, 403, 403, 200, 200, 404),
    "/tenants/acme/members/mw/": (403, 403, 403, 200, 403, 403, 403, 200, 404),
    "/tenants/acme/block/": (403, 403, 200, 200, 404, 404, 404, 404, 404),
}
"""A status for each of PEOPLE but the stranger, who is led to the login."""


@pytest.fixture
def key(watch: FakeWatch, db: None) -> ApiKey:
    tenant = tenant_create(access=ROOT, name="Acme", slug="acme")
    tenant_create(access=ROOT, name="Other", slug="other")
    return key_create(access=ROOT, tenant=tenant, name="K")[0]


@pytest.fixture
def client_of(key: ApiKey) -> Callable[[str], Client]:
    """Makes somebody of PEOPLE and logs them in."""
    acme, other = Tenant.objects.get(slug="acme"), Tenant.objects.get(slug="other")
    names = {
        "nobody": "no", "viewer": "vi", "operator": "op", "owner": "ow", "member_viewer": "mv",
        "member_operator": "mo", "member_admin": "ma", "member_owner": "mw", "other_owner": "oo",
    }  # fmt: skip
    users = {who: User.objects.create(username=name) for who, name in names.items()}
    users["viewer"].groups.add(Group.objects.get_or_create(name=VIEWERS_GROUP)[0])
    User.objects.filter(username="op").update(is_staff=True)
    User.objects.filter(username="ow").update(is_staff=True, is_superuser=True)
    for who, role in (
        ("member_viewer", Role.VIEWER), ("member_operator", Role.OPERATOR),
        ("member_admin", Role.TENANT_ADMIN), ("member_owner", Role.OWNER),
    ):  # fmt: skip
        Membership.objects.create(tenant=acme, user=users[who], role=role.value)
    Membership.objects.create(tenant=other, user=users["other_owner"], role=Role.OWNER.value)

    def make(who: str) -> Client:
        client = Client()
        if who in users:
            client.force_login(User.objects.get(pk=users[who].pk))
        return client

    return make


def test_every_page_answers_each_role_as_it_should(
    client_of: Callable[[str], Client], pool: Callable[[int], FakeWatch], key: ApiKey
) -> None:
    pool(2)
    wrong = []
    for who in PEOPLE:
        client = client_of(who)
        for page, statuses in PAGES.items():
            expected = 302 if who == "stranger" else statuses[PEOPLE.index(who) - 1]
            answer = client.get(page.format(key=key.public_id))
            # A request that no engine has is a 404 for who may move requests.
            if expected == 200 and page.startswith("/requests/"):
                expected = 404 if answer.status_code == 404 else 200
            if answer.status_code != expected:
                wrong.append(f"{who} {page}: {answer.status_code}, expected {expected}")
    assert not wrong


@pytest.mark.parametrize("who", PEOPLE[2:])
def test_the_navigation_offers_what_can_be_opened(
    who: str, client_of: Callable[[str], Client], pool: Callable[[int], FakeWatch]
) -> None:
    pool(1)
    client = client_of(who)
    first = "/cluster/" if who in ("viewer", "operator", "owner") else "/tenants/"
    html = client.get(first).content.decode()
    side = html[html.index('id="side"') : html.index("</nav>")]
    links = re.findall(r'class="item" href="([^"]+)"', side)
    assert links
    for link in links:
        status = client.get(link).status_code
        assert status in (200, 302), f"{link}: {status}"
    readers = ("viewer", "operator", "owner", "member_admin", "member_owner", "other_owner")
    assert ("/audit/" in links) == (who in readers)
    assert ("/admin/" in links) == (who in ("operator", "owner"))


@pytest.mark.parametrize(
    ("who", "place"),
    [
        pytest.param("viewer", "/cluster/", id="viewer"),
        pytest.param("member_viewer", "/tenants/acme/", id="member"),
        pytest.param("other_owner", "/tenants/other/", id="other"),
    ],
)
def test_everybody_has_a_first_page(
    who: str, place: str, client_of: Callable[[str], Client]
) -> None:
    assert client_of(who).get("/").headers["Location"] == place


def test_a_member_sees_nothing_of_other_tenants(
    client_of: Callable[[str], Client], pool: Callable[[int], FakeWatch]
) -> None:
    pool(2)
    client = client_of("other_owner")
    listed = client.get("/tenants/").content.decode()
    assert "/tenants/acme/" not in listed
    missing, theirs = client.get("/tenants/none/"), client.get("/tenants/acme/")
    strip = re.compile(rb"[0-9a-f]{32,}|csrf\S+")
    assert strip.sub(b"", missing.content) == strip.sub(b"", theirs.content)
    html = client.get("/tenants/other/").content.decode()
    assert 'id="frame"' not in html, "no live socket for members"
    assert "engines" not in html


def test_members_cannot_post_what_they_cannot_open(
    client_of: Callable[[str], Client], key: ApiKey
) -> None:
    for who, url, sent in (
        ("member_operator", f"/tenants/acme/keys/{key.public_id}/revoke/", {"confirm": "K"}),
        ("member_admin", "/tenants/acme/limits/", {"weight": "9"}),
        ("member_admin", "/tenants/acme/block/", {"confirm": "acme", "reason": "x"}),
        ("member_admin", "/tenants/acme/members/~add/", {"username": "vi", "role": "owner"}),
        ("member_admin", "/tenants/acme/members/mw/", {"role": "viewer"}),
        ("other_owner", "/tenants/acme/members/~add/", {"username": "oo", "role": "owner"}),
        ("viewer", "/whatif/", {}),
        ("viewer", "/tenants/acme/limits/", {"weight": "9"}),
    ):
        status = client_of(who).post(url, sent).status_code
        assert status in (403, 404), f"{who} {url}: {status}"
    assert not AuditEntry.objects.exclude(who="root").exists()
    key.refresh_from_db()
    assert key.revoked_at is None


def test_a_viewer_sees_why_buttons_do_nothing(
    client_of: Callable[[str], Client], pool: Callable[[int], FakeWatch]
) -> None:
    pool(2)
    html = client_of("viewer").get("/cluster/").content.decode()
    button = re.search(r'<a class="button[^>]+id="rebalancing-pause"[^>]*>', html)
    assert button is not None
    assert 'aria-disabled="true"' in button[0]
    assert "Needs the operator role" in button[0]
    assert "Needs the operator role" in client_of("viewer").get("/welcome/").content.decode()


def test_the_last_owner_stays(client_of: Callable[[str], Client]) -> None:
    client = client_of("member_owner")
    sent = {"confirm": "mw", "reason": "bye"}
    answer = client.post("/tenants/acme/members/mw/remove/", sent)
    assert answer.status_code == 400
    assert "would have no owner" in answer.content.decode()


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        pytest.param("abc-123", True, id="usable"),
        pytest.param("a b\nc", False, id="unusable"),
        pytest.param("x" * 200, False, id="too-long"),
    ],
)
def test_a_call_has_an_id_that_reaches_the_audit(
    given: str, is_taken: bool, client_of: Callable[[str], Client]
) -> None:
    answer = client_of("operator").post(
        "/tenants/acme/unblock/", {"reason": "x"}, headers={"X-Request-Id": given}
    )
    told = answer.headers["X-Request-Id"]
    assert (told == given) == is_taken
    sent = {"confirm": "acme", "reason": "x"}
    answer = client_of("operator").post(
        "/tenants/acme/block/", sent, headers={"X-Request-Id": given}
    )
    entry = AuditEntry.objects.get(action="tenant_state")
    assert entry.http_request_id == answer.headers["X-Request-Id"]


def test_every_page_of_ours_is_in_the_table() -> None:
    from web.tenant_urls import urlpatterns

    names = {resolve(page.format(key="0")).url_name for page in PAGES}
    posts = {
        "welcome-key",
        "welcome-leave",
        "tenant-unblock",
        "tenant-member-remove",
        "tenant-slo-remove",
    }
    assert {pattern.name for pattern in urlpatterns} - names == posts
