"""The secret part of a key stays with its owner."""

import httpx
import pytest
import redis

from tests.integration.installation import Installation
from tests.integration.streams import chat_body, open_stream

pytestmark = pytest.mark.both_databases

PAGES = ("/cluster/", "/playground/", "/status/", "/admin/", "/admin/tenants/apikey/")


def test_no_log_row_store_key_or_page_has_a_key_s_secret(idle: Installation) -> None:
    with open_stream(idle.url, idle.headers, chat_body(5)) as events:
        list(events)
    httpx.get(f"{idle.url}/v1/models", headers=idle.headers, timeout=30)
    httpx.get(
        f"{idle.url}/v1/models",
        headers={"Authorization": idle.headers["Authorization"] + "x"},
        timeout=30,
    )
    secret = idle.login["api_key"].rsplit("-", 1)[-1].encode()
    password = idle.login["password"].encode()
    places = {str(path): path.read_bytes() for path in (idle.var_dir / "log").iterdir()}
    assert len(places) >= 5
    places["database"] = idle.database_text().encode()
    places["store"] = _store_content(idle.store())
    places |= _pages(idle)
    assert secret[-4:] in places["/admin/tenants/apikey/"], "the page shows the key's end"
    for word in (secret, password):
        assert [place for place, content in places.items() if word in content] == []


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


def _pages(idle: Installation) -> dict[str, bytes]:
    with httpx.Client(base_url=idle.url, follow_redirects=True, timeout=30) as browser:
        browser.get("/login/")
        answer = browser.post(
            "/login/",
            data={
                "username": idle.login["username"],
                "password": idle.login["password"],
                "csrfmiddlewaretoken": browser.cookies["csrftoken"],
            },
            headers={"Referer": f"{idle.url}/login/"},
        )
        assert answer.status_code == 200
        assert "/login" not in str(answer.url), "logged in"
        found = {}
        for path in PAGES:
            page = browser.get(path)
            assert page.status_code == 200, path
            found[path] = page.content
        return found
