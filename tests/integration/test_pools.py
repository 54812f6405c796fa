"""Several pools at once: one comes, serves, changes, is switched off and goes, on a running
installation."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from engine_pool import view
from engine_pool.pool_keys import PoolKeys
from engine_pool.types import InstanceState
from ops.processes import MARK
from tests.integration.installation import DEADLINE_S, ROOT, Installation, wait_for
from tests.integration.operator import Operator

POOL, MODEL, ALIAS = "small", "small-model", "tiny"
KEYS = PoolKeys(POOL)
SAYS: list[Any] = [{"role": "user", "content": "Tell me about ferries."}]
PROGRAM = """
import django, json, sys
django.setup()
from controlplane.fleet.models import ModelAlias, Pool
from controlplane.fleet.pool_selectors import pool_get
from controlplane.fleet.pool_services import *
from controlplane.tenants.first_login import SETUP
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import key_create
asked = json.loads(sys.argv[1])
"""

Change = Callable[..., str]


@pytest.fixture(scope="module")
def change(installation: Installation) -> Change:
    """Runs lines with the services, in a process of their own; returns what they print."""
    installation.wait_ready()

    def run(lines: str, **asked: Any) -> str:
        environ = installation.environ | installation.state.environ
        environ |= {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            MARK: str(installation.run_dir),
        }
        command = [sys.executable, "-c", PROGRAM + lines, json.dumps(asked)]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, text=True, capture_output=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="module")
def small_key(installation: Installation, change: Change) -> Iterator[str]:
    """A second pool with an alias, and a key that may use only it."""
    web = [p.pid for p in installation.processes("web")]
    key = change(
        """
pool = pool_create(access=SETUP, changes=asked)
alias_set(access=SETUP, alias="tiny", pool=pool)
made = key_create(access=SETUP, tenant=Tenant.objects.get(slug="default"), name="small only",
                  allowed_models=[pool.served_model_name])
print(made[1])
""",
        name=POOL,
        served_model_name=MODEL,
        instances=2,
        engine_settings={"max_running": 8},
    )
    wait_for(lambda: len(serving(installation)) == 2, "both instances serve")
    wait_for(lambda: MODEL in models(installation), "the web process serves the model")
    assert [p.pid for p in installation.processes("web")] == web, "nothing was restarted"
    yield key
    change("Pool.objects.exclude(name='default').delete(); pools_publish_soon()")


def serving(installation: Installation) -> list[str]:
    blobs = installation.store().hvals(KEYS.statuses)
    statuses = map(view.decode_status, blobs)
    return sorted(s.instance for s in statuses if s.state is InstanceState.SERVING)


def models(installation: Installation, key: str = "") -> list[str]:
    client = installation.client() if not key else client_with(installation, key)
    return [model.id for model in client.models.list()]


def client_with(installation: Installation, key: str) -> OpenAI:
    return OpenAI(base_url=f"{installation.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)


def place(installation: Installation, model: str, key: str = "") -> str:
    """Returns the instance that took a short request."""
    client = installation.client() if not key else client_with(installation, key)
    answer = client.chat.completions.with_raw_response.create(
        model=model,
        messages=SAYS,
        max_tokens=8,
    )
    assert answer.parse().choices[0].message.content
    return str(answer.headers["x-ferry-instance"])


def default_model(installation: Installation) -> str:
    return models(installation)[0]


def test_a_pool_and_an_alias_come_without_a_restart(
    installation: Installation, small_key: str
) -> None:
    first = default_model(installation)
    assert set(models(installation)) == {first, MODEL, ALIAS}
    assert serving(installation) == ["small-01", "small-02"]
    assert place(installation, MODEL).startswith("small-")
    assert place(installation, ALIAS).startswith("small-")
    assert place(installation, first).startswith("i-")


def test_a_key_for_one_model_sees_only_that_one(installation: Installation, small_key: str) -> None:
    assert models(installation, small_key) == [MODEL]
    assert place(installation, MODEL, small_key).startswith("small-")
    with pytest.raises(NotFoundError, match="does not exist"):
        place(installation, default_model(installation), small_key)


def test_two_pools_instances_never_mix(installation: Installation, small_key: str) -> None:
    first = default_model(installation)
    with ThreadPoolExecutor(8) as threads:
        wanted = [MODEL, first] * 8
        places = list(threads.map(lambda model: place(installation, model), wanted))
    by_model = {
        model: {p for p, m in zip(places, wanted, strict=True) if m == model} for model in wanted
    }
    assert by_model[MODEL] <= {"small-01", "small-02"}
    assert by_model[first] <= {"i-01", "i-02"}
    assert {s.instance for s in installation.statuses()} == {"i-01", "i-02"}
    tested = wait_for(
        lambda: installation.store().hget(KEYS.migration, "self_test"), "moves are tested"
    )
    ends = json.loads(tested)
    assert {ends["source"], ends["destination"]} == {"small-01", "small-02"}


def test_metrics_and_api_tell_the_pools_apart(installation: Installation, small_key: str) -> None:
    metrics = httpx.get(f"{installation.url}/metrics", timeout=DEADLINE_S).text
    for pool in ("default", POOL):
        assert f'ferry:instances{{pool="{pool}",state="serving"}} 2.0' in metrics
    kinds = [line for line in metrics.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    with Operator(installation) as operator:
        assert operator.get("/snapshot", pool=POOL)["model"] == MODEL
        assert operator.get("/snapshot")["pool"] == "default"


def stream(installation: Installation, tokens: int) -> Any:
    """Opens an answer of the small pool and reads its first chunk."""
    chunks = installation.client().chat.completions.create(
        model=MODEL,
        messages=SAYS,
        max_tokens=tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(chunks)
    return chunks


def test_fewer_instances_cut_no_answer(
    installation: Installation, small_key: str, change: Change
) -> None:
    answers = [stream(installation, 200) for _ in range(4)]
    change("pool_update(access=SETUP, pool=pool_get('small'), changes={'instances': 1})")
    for answer in answers:
        reasons = [chunk.choices[0].finish_reason for chunk in answer if chunk.choices]
        assert reasons[-1] == "length"
    wait_for(lambda: serving(installation) == ["small-01"], "the second one has gone")
    wait_for(lambda: not installation.store().hexists(KEYS.statuses, "small-02"), "and is gone")


def test_a_pool_that_cannot_work_says_so_and_disturbs_nobody(
    installation: Installation, small_key: str, change: Change
) -> None:
    change(
        "pool_create(access=SETUP, changes=asked)",
        name="broken",
        model="/nowhere",
        served_model_name="broken-model",
    )

    def says() -> bytes | None:
        return installation.store().hget("ferry:pools:state", "broken")

    found = json.loads(wait_for(says, "the pool process has said something"))
    assert found["condition"] == "failed"
    assert "there is no such folder" in found["why"]
    assert place(installation, MODEL).startswith("small-")
    change(
        """
pool = pool_update(access=SETUP, pool=pool_get("broken"), changes={"is_enabled": False})
pool_remove(access=SETUP, pool=pool)
"""
    )


def test_a_pool_that_is_switched_off_ends_its_streams_with_an_error_and_can_be_removed(
    installation: Installation, small_key: str, change: Change
) -> None:
    with httpx.stream(
        "POST",
        f"{installation.url}/v1/chat/completions",
        headers=installation.headers,
        json={
            "model": MODEL,
            "messages": SAYS,
            "max_tokens": 3000,
            "stream": True,
            "ignore_eos": True,
        },
        timeout=DEADLINE_S,
    ) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("data:"))
        change("pool_update(access=SETUP, pool=pool_get('small'), changes={'is_enabled': False})")
        last = [line for line in lines if line.startswith("data:")][-1]
    error = json.loads(last.removeprefix("data:"))["error"]
    assert error["code"] in ("pool_removed", "instance_lost")
    first = default_model(installation)
    wait_for(lambda: models(installation) == [first], "only the first pool's model is left")
    assert place(installation, first).startswith("i-")
    change("pool_remove(access=SETUP, pool=pool_get('small'))")
    wait_for(lambda: not installation.store().exists(*KEYS.all), "nothing of it is in the store")
    assert json.loads(change("print(json.dumps(ModelAlias.objects.count()))")) == 0
