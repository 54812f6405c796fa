"""What `make up` says about settings and machines that cannot work: one clear line each."""

import socket
from pathlib import Path

import pytest

from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError
from engine_pool.types import EngineKind
from ops import checks, model
from ops.settings import read_settings


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param(
            {"INSTANCES": "two"},
            "INSTANCES='two': expected a whole number from 0 to 512",
            id="short name",
        ),
        pytest.param(
            {"FERRY_INSTANCES": "-1"},
            "FERRY_INSTANCES='-1': expected a whole number from 0 to 512",
            id="long name",
        ),
        pytest.param(
            {"ENGINE": "gpu"}, "ENGINE='gpu': expected vllm or simulated", id="unknown engine"
        ),
        pytest.param(
            {"PORT": "99999"}, "PORT='99999': expected a whole number from 1 to 65535", id="port"
        ),
        pytest.param(
            {"HOST": "example"},
            "HOST='example': expected an IP address of this machine",
            id="host",
        ),
        pytest.param(
            {"KV_CACHE_GIB": "0"}, "KV_CACHE_GIB='0': expected a number of at least 0.01", id="KV"
        ),
        pytest.param(
            {"ENGINE_MEMORY_GIB": "nan"},
            "ENGINE_MEMORY_GIB='nan': expected a number of at least 0.1",
            id="not a number",
        ),
    ],
)
def test_a_bad_setting_is_named_as_it_was_given(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(environ)
    assert str(caught.value) == message


def test_the_short_name_wins_over_the_long_one() -> None:
    settings = read_settings({"INSTANCES": "3", "FERRY_INSTANCES": "5", "FERRY_PORT": "8123"})
    assert (settings.pool.instances, settings.port) == (3, 8123)


def test_empty_settings_mean_the_defaults() -> None:
    settings = read_settings({"INSTANCES": "", "PORT": " "})
    assert (settings.pool.instances, settings.url) == (2, "http://127.0.0.1:8000")


def test_a_taken_port_is_named_with_a_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(checks.CannotStart, match=rf"port {port} .* taken .*PORT=\d+ make up"):
            checks.check_port("127.0.0.1", port)
    checks.check_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("pool", "needed_gib"),
    [
        pytest.param(PoolConfig(instances=2), 6.5, id="two real engines"),
        pytest.param(
            PoolConfig(instances=1, engine_memory_gib=10.0, kv_cache_gib=4.0), 15.5, id="large"
        ),
        pytest.param(PoolConfig(instances=2, tensor_parallel=2), 9.3, id="two of two ranks"),
        pytest.param(
            PoolConfig(instances=8, engine=EngineKind.SIMULATED), 2.7, id="eight simulated"
        ),
    ],
)
def test_memory_is_counted_before_anything_starts(pool: PoolConfig, needed_gib: float) -> None:
    assert checks.needed_gib(pool) == pytest.approx(needed_gib)
    checks.check_memory(pool, needed_gib)
    with pytest.raises(checks.CannotStart, match=rf"need {needed_gib:.1f} GiB .* lower INSTANCES"):
        checks.check_memory(pool, needed_gib - 0.1)


def test_a_model_path_must_hold_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^MODEL: there is no folder .*absent$"):
        model.prepare(str(tmp_path / "absent"), tmp_path, tokenizer_only=False)
    with pytest.raises(ConfigError, match=r"^MODEL: .* has no config.json"):
        model.prepare(str(tmp_path), tmp_path, tokenizer_only=False)
    (tmp_path / "config.json").write_text("{}")
    assert model.prepare(str(tmp_path), tmp_path, tokenizer_only=False) == str(tmp_path)


def test_a_hub_that_cannot_be_reached_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"MODEL='some/model'.*hub cannot be reached"):
        model.prepare("some/model", tmp_path, tokenizer_only=False)
