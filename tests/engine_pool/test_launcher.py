"""What an engine is told at its start, and which model it is."""

import os
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError
from engine_pool.launcher import Launcher
from engine_pool.served_model import (
    ServedModel,
    longest_context_tokens,
    resolve_model,
    sample_text,
)
from engine_pool.types import InstanceName
from tests.tiny_model import MAX_MODEL_LEN, tiny_model

CORES = os.cpu_count() or 1


def spec(**settings):
    config = PoolConfig(**settings)
    launcher = Launcher(config, ServedModel("/m", "m"), 100, None)
    return launcher.spec(InstanceName("i-01"), "a")


def test_engines_share_the_cores_unless_told_otherwise():
    assert spec(instances=1).threads == CORES
    assert spec(instances=CORES * 4).threads == 1
    assert spec(instances=1, engine_threads=3).threads == 3
    assert spec(instances=0).threads == CORES


@pytest.mark.parametrize(
    "changed",
    [
        {"kv_cache_gib": 2.0},
        {"max_running": 7},
        {"block_size": 32},
        {"redis_url": "redis://other"},
        {"pool": "other"},
        {"tensor_parallel": 2},
        {"engine_threads": 2},
        {"ageing_s": 0.0},
        {"class_preemptions_max": 0},
        {"fair_output_tokens": 1},
    ],
    ids=lambda c: next(iter(c)),
)
def test_an_engine_of_other_settings_is_outdated(changed):
    assert spec(**changed).fingerprint != spec().fingerprint


def test_but_one_of_another_incarnation_is():
    assert replace(spec(), incarnation="b").fingerprint == spec().fingerprint


def test_a_folder_is_served_under_its_name_or_a_given_one():
    folder = tiny_model()
    model = resolve_model(PoolConfig(model=str(folder)))
    assert (model.path, model.name) == (str(folder), folder.name)
    named = resolve_model(PoolConfig(model=str(folder), served_model_name="tiny"))
    assert named.name == "tiny"


def test_a_hub_id_is_left_to_the_engine():
    assert resolve_model(PoolConfig(model="owner/name")) == ServedModel("owner/name", "name")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"model": "/no/such"}, "no such folder", id="missing folder"),
        pytest.param({"model": "./a/b"}, "no such folder", id="missing relative folder"),
        pytest.param({"model": "/"}, "no config.json", id="no checkpoint"),
        pytest.param({}, "default model is not prepared", id="default not prepared"),
    ],
)
def test_a_missing_model_is_named(settings, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        resolve_model(PoolConfig(var_dir=tmp_path, **settings))


def test_the_sample_text_is_readable_in_the_models_tokens():
    model = resolve_model(PoolConfig(model=str(tiny_model())))
    text = sample_text(model)
    tokenizer = Tokenizer.from_file(str(tiny_model() / "tokenizer.json"))
    answer = tokenizer.decode([*text.openings[0], *text.sentences[1]])
    assert answer.startswith("This answer comes from a simulated engine")
    assert ". Its steps take" in answer
    assert tokenizer.id_to_token(text.eos_token_id) == "<|im_end|>"


def test_the_longest_context_is_the_models_or_less():
    model = resolve_model(PoolConfig(model=str(tiny_model())))
    assert longest_context_tokens(model, PoolConfig()) == MAX_MODEL_LEN
    assert longest_context_tokens(model, PoolConfig(max_model_len=100)) == 100
    assert longest_context_tokens(model, PoolConfig(max_model_len=10**6)) == MAX_MODEL_LEN
