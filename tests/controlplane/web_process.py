"""A web process with vLLM's real front end, and an instance that says what a test wants."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import redis

from controlplane.gateway.app import GatewayApp
from controlplane.gateway.limits import admission_of
from controlplane.gateway.pools import Pools
from controlplane.gateway.runtime import Runtime
from controlplane.tenants.key_cache import KeyCache
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.policy.settings import PolicySettings
from tests.controlplane.asgi_client import Exchange
from tests.controlplane.fakes import FakeGate, Producer, load_of, status_of, until

TEXT = "Hi 👩‍👩‍👧 你好，世界 🎉 é! naïve 🇩🇪 ok"  # noqa: RUF001
"""Characters of up to four bytes, and pictures made of several: tokens cut through both."""
MESSAGES = [{"role": "user", "content": "hi"}]


Make = Callable[[], "contextlib.AbstractAsyncContextManager[Web]"]


class Web:
    """One web process and the one instance that it knows."""

    def __init__(
        self, config: PoolConfig, load: Callable[[PoolClient], Any], policies: dict[str, KeyPolicy]
    ) -> None:
        self.gate = FakeGate()
        self.client = PoolClient(config, self.gate)
        self.runtime = Runtime(self.client, load)
        self.keys = KeyCache(lambda *, public_id: policies.get(public_id))
        self.pools = Pools(self.runtime)
        self.app = GatewayApp(self.pools, self.keys)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Exchange:
        return Exchange(
            self.app, method, path, body, {k.replace("_", "-"): v for k, v in headers.items()}
        )

    @property
    def engine_ids(self) -> list[str]:
        return [r.request_id for r in self.gate.requests]


@contextlib.asynccontextmanager
async def running(
    url: str,
    load: Callable[[PoolClient], Any],
    policies: dict[str, KeyPolicy],
    rules: PolicySettings | None = None,
) -> AsyncIterator[Web]:
    """Starts a web process that knows one serving instance."""
    config = PoolConfig(redis_url=url, policy=rules or PolicySettings())
    made = Web(config, load, policies)
    await made.runtime.start()
    await until(
        lambda: (
            made.client.reader.is_connected
            and made.client.view.store_connected
            and made.runtime.front is not None
        )
    )
    made.client.view.apply(status_of("i-01"))
    made.client.view.apply(load_of("i-01"))
    try:
        yield made
    finally:
        await made.runtime.stop()
        await admission_of(made.pools).stop()


def tokens_of(web: Web, text: str) -> list[int]:
    assert web.runtime.front is not None
    return list(web.runtime.front.llm.get_tokenizer().encode(text, add_special_tokens=False))


def speak(store: "redis.Redis[bytes]", request_id: str, tokens: Sequence[int]) -> None:
    """Writes an answer as an engine would, one token a step."""
    producer = Producer(store)
    for i, token in enumerate(tokens):
        last = i == len(tokens) - 1
        assert producer.write(request_id, i, [token], finish="length" if last else None)


def bodies(events: Sequence[str]) -> list[dict[str, Any]]:
    lines = [line for e in events for line in e.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def text_of(events: Sequence[str], index: int = 0) -> str:
    deltas = [
        c["delta"].get("content") or ""
        for b in bodies(events)
        for c in b["choices"]
        if c["index"] == index
    ]
    return "".join(deltas)


def know_two(*webs: Web) -> None:
    """Lets web processes know another instance, which is not preferred.

    The first one reports again: on a busy machine its report may be too old by now.
    """
    for w in webs:
        w.client.view.apply(load_of("i-01", seq=2))
        w.client.view.apply(status_of("i-02"))
        w.client.view.apply(load_of("i-02", used=5000))
