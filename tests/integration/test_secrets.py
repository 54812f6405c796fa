"""Secrets stay with their owners: keys, old and new, a password, a session; and prompts, too.

Everything that can be looked at is: logs of all parts, rows of all tables, the store's keys and
values, metrics, error bodies, every page that links lead to (exports among them), and /api/v1.
"""

import re
import uuid
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
import redis

from tests.integration.installation import Installation
from tests.integration.operator import API, Operator
from tests.integration.streams import chat_body, open_stream

pytestmark = pytest.mark.both_databases

TENANT = "canaries"
PROMPT = f"canary-{uuid.uuid4().hex}"
LINK = re.compile(rb'(?:href|hx-get|action)="([^"#]+)')
PAGES_MAX = 200
"""Opened; far more than there are kinds of pages."""
PAGES_MIN = 60
ROWS_OF_A_KIND = 3
"""Pages that differ in a row alone: some are as good as all."""
SKIPPED = ("/logout", "/static/", "/admin/logout", "/admin/jsi18n", "/v1/")


@dataclass
class Canary:
    """What must not be found, and what was answered meanwhile."""

    secrets: dict[str, str] = field(default_factory=dict)
    """What it is -> its text; of a key without its public part."""
    answers: dict[str, bytes] = field(default_factory=dict)
    """What was asked for -> what came, errors and their headers among them."""

    def key(self, name: str, text: str) -> dict[str, str]:
        """Notes a key; returns the headers that it is used with."""
        self.secrets[name] = text.split("-", 2)[2]
        return {"Authorization": f"Bearer {text}"}

    def keep(self, answer: httpx.Response) -> httpx.Response:
        request = answer.request
        self.answers[f"{request.method} {request.url}"] = (
            answer.content + repr(answer.headers).encode()
        )
        return answer


@pytest.fixture(scope="module")
def canary(installation: Installation) -> Canary:
    """Everything that one does with a key, rightly and wrongly, has been done."""
    idle = installation
    idle.wait_ready()
    idle.wait_idle()
    canary = Canary(secrets={"password": idle.login["password"]})
    canary.key("first key", idle.login["api_key"])
    with Operator(idle) as operator:
        operator.post("/tenants", {"name": "Canaries", "slug": TENANT})
        about = {"name": "ci", "scopes": ["inference", "read", "manage"]}
        made = operator.post(f"/tenants/{TENANT}/keys", about)
        assert made.status_code == 201, made.text
        old = canary.key("old secret", made.json()["key"])
        use(idle, canary, old)
        public_id = made.json()["public_id"]
        rotated = operator.post(f"/keys/{public_id}/rotate", {"overlap_s": 3600})
        assert rotated.status_code == 200, rotated.text
        new = canary.key("new secret", rotated.json()["key"])
        use(idle, canary, old)
        use(idle, canary, new)
        misuse(idle, canary, new)
        canary.secrets["session"] = operator.session_id
        look_around(operator, canary)
        operator.post(f"/keys/{public_id}/revoke", {})
        assert canary.keep(httpx.get(f"{idle.url}/v1/models", headers=new)).status_code == 401
    return canary


def use(idle: Installation, canary: Canary, headers: dict[str, str]) -> None:
    """Does what a key is for, at every door; what it sent is a prompt that nobody else has."""
    body = chat_body(5, messages=[{"role": "user", "content": PROMPT}])
    with open_stream(idle.url, headers, body) as events:
        list(events)
    canary.keep(httpx.get(f"{idle.url}/v1/models", headers=headers, timeout=30))
    # With Idempotency-Key the answer is kept; a new key's secret must not be.
    kept = {**headers, "Idempotency-Key": uuid.uuid4().hex}
    url = f"{idle.url}{API}/tenants/{TENANT}/keys"
    about = {"name": "child", "scopes": ["inference"]}
    child = httpx.post(url, json=about, headers=kept, timeout=30)
    assert child.status_code == 201, child.text
    canary.key(f"child key {child.json()['public_id']}", child.json()["key"])
    again = canary.keep(httpx.post(url, json=about, headers=kept, timeout=30))
    assert again.json()["public_id"] == child.json()["public_id"]
    for path in (f"/tenants/{TENANT}/keys", f"/tenants/{TENANT}/usage", "/me", "/requests"):
        canary.keep(httpx.get(f"{idle.url}{API}{path}", headers=headers, timeout=30))


def misuse(idle: Installation, canary: Canary, headers: dict[str, str]) -> None:
    """Does what gives errors with the key in all places where people put one."""
    key = headers["Authorization"].removeprefix("Bearer ")
    url = f"{idle.url}/v1/chat/completions"
    bad = chat_body(5, model=key, messages=[{"role": "user", "content": PROMPT}])
    answers = [
        httpx.get(f"{idle.url}/v1/models", headers={"Authorization": f"Bearer {key}x"}),
        httpx.get(f"{idle.url}/v1/models", headers={"Authorization": f"Basic {key}"}),
        httpx.get(f"{idle.url}{API}/me", headers={"Authorization": f"Bearer {key}x"}),
        httpx.post(url, content=b"{", headers=headers),
        httpx.post(url, json={"model": 1}, headers=headers),
        httpx.post(f"{idle.url}/login/", data={"username": "operator", "password": key}),
    ]
    assert all(answer.status_code in (400, 401, 403, 404) for answer in answers), answers
    for answer in answers:
        canary.keep(answer)
    assert httpx.post(url, json=bad, headers=headers).status_code == 404


def look_around(operator: Operator, canary: Canary) -> None:
    """Opens every page that links lead to, and all of /api/v1 that needs no name."""
    schema = canary.keep(operator.open(f"{API}/schema/?format=json")).json()
    for path, methods in schema["paths"].items():
        if "get" in methods and "{" not in path:
            assert canary.keep(operator.open(path)).status_code < 500, path
    waiting = ["/", "/admin/", f"/tenants/{TENANT}/", "/status/", "/metrics"]
    kinds: dict[str, int] = {}
    seen = set(waiting)
    opened = 0
    while waiting and opened < PAGES_MAX:
        page = operator.open(waiting.pop(0))
        opened += 1
        assert page.status_code < 500, page.url
        canary.keep(page)
        for link in LINK.findall(page.content):
            path = urlsplit(urljoin(str(page.url), link.decode().replace("&amp;", "&")))
            where = path.path + (f"?{path.query}" if path.query else "")
            kind = re.sub(r"[0-9a-f]{12,}|\d+|i-\d+", "#", path.path)
            is_ours = path.netloc == page.url.netloc.decode()
            if not is_ours or where in seen or path.path.startswith(SKIPPED):
                continue
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= ROWS_OF_A_KIND:
                seen.add(where)
                waiting.append(where)
    assert len(canary.answers) >= PAGES_MIN, sorted(canary.answers)


def test_secrets_are_nowhere(installation: Installation, canary: Canary) -> None:
    idle = installation
    places = logs(idle) | canary.answers
    places["database"] = idle.database_text().encode()
    places["store"] = _store_content(idle.store())
    shown = places[f"GET {idle.url}{API}/tenants/{TENANT}/keys"]
    assert canary.secrets["new secret"][-4:].encode() in shown, "a key's end may be seen"
    assert len(canary.secrets) >= 7
    found = [
        (name, place)
        for name, secret in canary.secrets.items()
        for place, content in places.items()
        if secret.encode() in content
    ]
    assert found == []


def test_prompts_are_in_no_log_table_or_page(installation: Installation, canary: Canary) -> None:
    idle = installation
    places = logs(idle) | canary.answers
    places["database"] = idle.database_text().encode()
    assert b"completions" in places["database"] or b"chat" in places["database"]
    assert [place for place, content in places.items() if PROMPT.encode() in content] == []


def logs(idle: Installation) -> dict[str, bytes]:
    found = {str(path): path.read_bytes() for path in (idle.var_dir / "log").iterdir()}
    assert len(found) >= 5
    return found


def _store_content(store: "redis.Redis[bytes]") -> bytes:
    content = bytearray()
    for key in store.scan_iter():
        content += key + b"\n" + repr(_value(store, key)).encode()
    assert content
    return bytes(content)


def _value(store: "redis.Redis[bytes]", key: bytes) -> object:
    match store.type(key):
        case b"hash":
            return store.hgetall(key)
        case b"stream":
            return store.xrange(key)
        case b"list":
            return store.lrange(key, 0, -1)
        case b"set":
            return store.smembers(key)
        case b"zset":
            return store.zrange(key, 0, -1)
        case _:
            return store.get(key)
