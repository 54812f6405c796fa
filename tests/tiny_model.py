"""A tiny random Llama with a real tokenizer, for tests that need a real engine but no sense.

    python -m tests.tiny_model

Prints its folder below var/. Made in about a second, without torch; kept for the next run.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VERSION = 1
"""Raise it when anything below changes: the folder's name has it."""
ROOT = Path(__file__).resolve().parents[1]
MAX_MODEL_LEN = 2048
VOCABULARY = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a random Llama; the defaults are the tiny one's."""

    max_model_len: int = MAX_MODEL_LEN
    layers: int = 2
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    """vLLM's CPU attention takes no smaller one."""
    intermediate: int = 256


def write_model(folder: Path, shape: Shape) -> None:
    """Writes a random Llama with tokenizer into an empty folder."""
    _write_tokenizer(folder, shape)
    _write_config(folder, shape)
    save_file(_weights(shape), folder / "model.safetensors", metadata={"format": "pt"})


def tiny_model() -> Path:
    """Returns the model's folder, making it if it is not there."""
    folder = ROOT / "var" / "test-models" / f"tiny-llama-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
        write_model(unfinished, Shape())
        try:
            os.rename(unfinished, folder)
        except OSError:
            # Another test process was quicker; both have made the same.
            assert folder.is_dir()
    return folder


def _write_tokenizer(folder: Path, shape: Shape) -> None:
    """Trains a byte-level BPE on the texts at hand: every text has tokens, most words have few."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted((ROOT / "engine_pool").rglob("*.py"))[:20]
    tokenizer.train_from_iterator((t.read_text() for t in texts), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "model_max_length": shape.max_model_len,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1))


def _write_config(folder: Path, shape: Shape) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.max_model_len,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def _weights(shape: Shape) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        # Large enough that the next token depends on the text and is not always the same.
        scale = 1.5 / np.sqrt(columns)
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    ones = np.ones(shape.hidden, dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, shape.hidden),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(VOCABULARY, shape.hidden),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": ones,
            f"{prefix}.post_attention_layernorm.weight": ones,
            f"{prefix}.self_attn.q_proj.weight": matrix(
                shape.heads * shape.head_size, shape.hidden
            ),
            f"{prefix}.self_attn.k_proj.weight": matrix(
                shape.kv_heads * shape.head_size, shape.hidden
            ),
            f"{prefix}.self_attn.v_proj.weight": matrix(
                shape.kv_heads * shape.head_size, shape.hidden
            ),
            f"{prefix}.self_attn.o_proj.weight": matrix(
                shape.hidden, shape.heads * shape.head_size
            ),
            f"{prefix}.mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate),
        }
    return weights


if __name__ == "__main__":
    print(tiny_model())
