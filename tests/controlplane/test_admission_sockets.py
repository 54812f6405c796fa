"""Limits and access over the API's WebSocket."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controlplane.tenants import key_cache
from controlplane.tenants.selectors import KeyPolicy, Limits
from tests.controlplane.fakes import until
from tests.controlplane.test_consumers import Socket
from tests.controlplane.web_process import Make, speak, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def allow(policies: dict[str, KeyPolicy], auth: str) -> Callable[..., None]:
    """Changes alice's policy."""

    def change(**fields: Any) -> None:
        ((public_id, policy),) = policies.items()
        policies[public_id] = replace(policy, **fields)

    return change


async def test_an_answer_that_is_refused_says_by_which_limit(
    web: Make, auth: str, allow: Callable[..., None], store: Any
) -> None:
    allow(limits=Limits(requests_per_minute=1))
    async with web() as w:
        socket = await Socket(w, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, "hi"))
        await socket.hear_until("response.completed")
        await socket.say(type="response.create", input="hi")
        failed = (await socket.hear_until("response.failed"))[-1]["response"]["error"]
        assert (failed["code"], failed["param"]) == ("rate_limit_exceeded", "rpm")
        assert 0 < failed["retry_after_ms"] <= 61_000
        await socket.leave()


async def test_a_key_that_was_revoked_gets_no_further_answer_on_an_open_socket(
    web: Make, auth: str, allow: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "FRESH_S", 0.0)
    async with web() as w:
        socket = await Socket(w, auth).open()
        allow(is_active=False)
        await socket.say(type="response.create", input="hi")
        assert (await socket.hear())["error"]["code"] == "invalid_api_key"
        assert await socket.closed_with() == 1008


async def test_a_blocked_tenant_is_not_let_in(
    web: Make, auth: str, allow: Callable[..., None]
) -> None:
    allow(is_blocked=True)
    async with web() as w:
        socket = await Socket(w, auth).open()
        assert (await socket.hear())["error"]["code"] == "permission_denied"
        assert await socket.closed_with() == 1008
