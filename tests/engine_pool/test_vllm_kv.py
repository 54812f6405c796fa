"""KV blocks in host memory, and what tells two engines' blocks apart: no engine is needed."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_pool.errors import EngineFailed
from engine_pool.vllm_kv import VllmKv
from engine_pool.vllm_shape import model_fingerprint, why_request_cannot_move

LAYERS, BLOCKS, HEADS, TOKENS, CHANNELS = 3, 20, 2, 16, 8
SHAPE = (BLOCKS, HEADS, TOKENS, CHANNELS)
IDS = (7, 2, 19, 0)


def layers_of_one_allocation() -> list[torch.Tensor]:
    whole = torch.randn(LAYERS, *SHAPE).to(torch.bfloat16)
    return list(whole)


def layers_apart() -> list[torch.Tensor]:
    return [torch.randn(*SHAPE).to(torch.bfloat16) for _ in range(LAYERS)]


def layers_inside_blocks() -> list[torch.Tensor]:
    """Blocks outermost: a block has all its layers side by side."""
    whole = torch.randn(BLOCKS, LAYERS, HEADS, TOKENS, CHANNELS).to(torch.bfloat16)
    return list(whole.unbind(1))


def layers_of_two_sizes() -> list[torch.Tensor]:
    return [*layers_apart(), torch.randn(BLOCKS, 1, TOKENS, CHANNELS)]


@pytest.mark.parametrize(
    "make", [layers_of_one_allocation, layers_apart, layers_inside_blocks, layers_of_two_sizes]
)
def test_blocks_arrive_as_they_left(make):
    source, destination = make(), make()
    there, here = VllmKv(source, BLOCKS), VllmKv(destination, BLOCKS)
    assert there.block_bytes == here.block_bytes == sum(c[0].nbytes for c in source)
    before = [cache.clone() for cache in destination]
    buffer = there.new_buffer(len(IDS) + 1)
    assert buffer.shape == (len(IDS) + 1, there.block_bytes)
    there.gather(IDS, buffer)
    into = (1, 2, 3, 4)
    here.scatter(into, buffer)
    others = [n for n in range(BLOCKS) if n not in into]
    for cache, other, old in zip(source, destination, before, strict=True):
        assert torch.equal(other[list(into)], cache[list(IDS)])
        assert torch.equal(other[others], old[others])


def test_a_buffer_holds_layers_then_blocks():
    caches = layers_apart()
    kv = VllmKv(caches, BLOCKS)
    buffer = kv.new_buffer(len(IDS))
    kv.gather(IDS, buffer)
    wire = buffer.view(-1).view(torch.bfloat16).view(LAYERS, len(IDS), *SHAPE[1:])
    assert torch.equal(wire, torch.stack([cache[list(IDS)] for cache in caches]))


def test_layers_that_share_a_cache_are_sent_once():
    first, second, _ = layers_apart()
    kv = VllmKv([first, second, first], BLOCKS)
    assert kv.layers == 2
    assert kv.block_bytes == first[0].nbytes * 2


def test_a_small_buffer_is_refused():
    kv = VllmKv(layers_apart(), BLOCKS)
    with pytest.raises(ValueError, match="too small"):
        kv.gather(IDS, kv.new_buffer(len(IDS) - 1))


@pytest.mark.parametrize(
    ("caches", "words"),
    [
        pytest.param([torch.zeros(BLOCKS * 2, 1, 8, 8)], "does not hold 20 blocks", id="split"),
        pytest.param([], "no KV cache", id="none"),
        pytest.param([torch.zeros(BLOCKS, 8, 2, 8).transpose(1, 2)], "contiguous", id="strided"),
    ],
)
def test_a_cache_of_another_layout_is_refused(caches, words):
    with pytest.raises(EngineFailed, match=words):
        VllmKv(caches, BLOCKS)


def write_model(folder: Path, config: str = "{}", weight_bytes: int = 100) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(b"\0" * weight_bytes)
    (folder / "README.md").write_text(str(folder))
    return str(folder)


def test_a_model_is_known_by_what_it_is_and_not_by_where_it_lies(tmp_path):
    one = write_model(tmp_path / "one")
    same = write_model(tmp_path / "two")
    others = [
        model_fingerprint(write_model(tmp_path / "three", config='{"a": 1}'), "bf16"),
        model_fingerprint(write_model(tmp_path / "four", weight_bytes=101), "bf16"),
        model_fingerprint(one, "fp16"),
        model_fingerprint("org/model", "bf16"),
        model_fingerprint(f"{one}/model.safetensors", "bf16"),
    ]
    assert model_fingerprint(one, "bf16") == model_fingerprint(same, "bf16")
    assert len({model_fingerprint(one, "bf16"), *others}) == 1 + len(others)


PLAIN = {
    "lora_request": None,
    "mm_features": [],
    "prompt_embeds": None,
    "pooling_params": None,
    "resumable": False,
    "kv_transfer_params": None,
}


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ({"lora_request": object()}, "LoRA"),
        ({"mm_features": [object()]}, "images"),
        ({"prompt_embeds": object()}, "embeddings"),
        ({"pooling_params": object()}, "pooling"),
        ({"resumable": True}, "streamed input"),
        ({"kv_transfer_params": {"a": 1}}, "KV transfer"),
    ],
)
def test_a_request_with_what_cannot_move_stays(feature, words):
    assert words in why_request_cannot_move(SimpleNamespace(**PLAIN | feature))
    assert why_request_cannot_move(SimpleNamespace(**PLAIN)) == ""
