"""Which model the pool serves, and what simulated engines need to know of it. Loads no weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_pool.config import PoolConfig
from engine_pool.engine_spec import SampleText
from engine_pool.errors import ConfigError
from engine_pool.simulator.sample_text import SENTENCES

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""Prepared below `var_dir`/models by `make up` (ops/model.py)."""
FALLBACK_MODEL_LEN = 4096
"""Tokens, for a simulated engine whose model's configuration names no longest context."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is there."""

    path: str
    """An absolute folder, or a hub id."""
    name: str
    """What clients and pages call it."""

    @property
    def folder(self) -> Path | None:
        """The folder; None for a hub id."""
        return Path(self.path) if Path(self.path).is_absolute() else None


def resolve_model(config: PoolConfig) -> ServedModel:
    """Finds the model that the settings name. Raises: ConfigError saying what is missing."""
    if config.model:
        is_folder = Path(config.model).expanduser().is_dir()
        if not is_folder and _looks_like_path(config.model):
            raise ConfigError(f"FERRY_MODEL={config.model!r}: there is no such folder")
        path = Path(config.model).expanduser().resolve() if is_folder else Path(config.model)
        hint = "FERRY_MODEL"
    else:
        path, is_folder = (config.var_dir / "models" / DEFAULT_MODEL).resolve(), True
        hint = "the default model is not prepared (run `make up`, or set FERRY_MODEL)"
    if is_folder and not (path / "config.json").is_file():
        raise ConfigError(f"{hint}: {path} holds no config.json")
    return ServedModel(str(path), config.served_model_name or path.name)


def _looks_like_path(model: str) -> bool:
    # A hub id is `name` or `owner/name`.
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def longest_context_tokens(model: ServedModel, config: PoolConfig) -> int:
    """Returns the longest prompt plus output of a simulated engine, in tokens."""
    known = _read_json(model, "config.json").get("max_position_embeddings") or FALLBACK_MODEL_LEN
    return min(config.max_model_len or known, known)


def sample_text(model: ServedModel) -> SampleText:
    """Returns the simulated engines' text in the model's tokens.

    Raises: ConfigError when the model has no tokenizer.json or no end-of-sequence token.
    """
    # Imported here: only pools of simulated engines need it.
    from tokenizers import Tokenizer

    try:
        if model.folder is None:
            tokenizer = Tokenizer.from_pretrained(model.path)
        else:
            tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"{model.path}: no usable tokenizer.json ({error})") from error
    inner, openings = (
        tuple(tuple(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False))
        for texts in ([f" {s}" for s in SENTENCES], list(SENTENCES))
    )
    return SampleText(inner, openings, _eos_token_id(model, tokenizer))


def _eos_token_id(model: ServedModel, tokenizer: Any) -> int:
    for file in ("generation_config.json", "config.json"):
        found = _read_json(model, file).get("eos_token_id")
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, int):
            return found
    token = _read_json(model, "tokenizer_config.json").get("eos_token")
    found = tokenizer.token_to_id(token["content"] if isinstance(token, dict) else str(token))
    if found is None:
        raise ConfigError(f"{model.path}: no eos_token_id in its configuration")
    return int(found)


def _read_json(model: ServedModel, file: str) -> dict[str, Any]:
    """Returns a file of the model, {} when it has none. Raises: ConfigError on broken JSON."""
    if model.folder is None:
        return {}
    try:
        found = json.loads((model.folder / file).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{model.folder / file}: not JSON ({error})") from error
    return found if isinstance(found, dict) else {}
