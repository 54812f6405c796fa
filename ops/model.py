"""Prepares the model that `make up` serves, and says where it is.

    python -m ops.model [--model PATH_OR_HUB_ID] [--var var] [--tokenizer-only]

Prints one line: the folder (for a hub id, the folder of the download). What is there already is
not made again. Everything appears at once (a folder beside it, then a rename), so a stop half way
leaves nothing broken.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from engine_pool.errors import ConfigError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
READY_FILE = "ferry-prepared"
"""Written last; without it a folder below var/models counts as unfinished."""


def prepare(model: str, var_dir: Path, *, tokenizer_only: bool) -> str:
    """Makes the model ready and returns its folder. Raises: ConfigError in words for the person."""
    if not model:
        return str(_prepare_default(var_dir / "models", tokenizer_only=tokenizer_only))
    if looks_like_path(model):
        return str(check_folder(Path(model).expanduser()))
    return _download(model, tokenizer_only=tokenizer_only)


def looks_like_path(model: str) -> bool:
    """Says whether `model` names a folder; a hub id is `name` or `owner/name`."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or Path(model).is_dir()


def check_folder(folder: Path) -> Path:
    """Returns the folder, absolute. Raises: ConfigError unless it holds a checkpoint."""
    if not folder.is_dir():
        raise ConfigError(f"MODEL: there is no folder {folder}")
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"MODEL: {folder} has no config.json, so it is not a Hugging Face checkpoint"
        )
    return folder.resolve()


def _prepare_default(models: Path, *, tokenizer_only: bool) -> Path:
    """Makes the default model; one with only a tokenizer is completed when weights are needed."""
    folder = models.resolve() / DEFAULT_MODEL
    if _is_complete(folder, tokenizer_only=tokenizer_only):
        return folder
    models.mkdir(parents=True, exist_ok=True)
    import gguf  # heavy, like all that default_model imports

    from ops import default_model

    reader = gguf.GGUFReader(default_model.find_weights())
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=models))
    try:
        unfinished.chmod(0o755)
        default_model.write_tokenizer(reader, unfinished)
        if not tokenizer_only:
            default_model.write_weights(reader, unfinished, DEFAULT_MODEL)
        (unfinished / READY_FILE).write_text("tokenizer" if tokenizer_only else "all")
        _swap(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _is_complete(folder: Path, *, tokenizer_only: bool) -> bool:
    try:
        parts = (folder / READY_FILE).read_text()
    except OSError:
        return False
    return parts == "all" or tokenizer_only


def _swap(new: Path, folder: Path) -> None:
    """Puts `new` in the folder's place; a rename over a folder that is not empty is not allowed."""
    old = new.with_name(new.name + "-old")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _download(hub_id: str, *, tokenizer_only: bool) -> str:
    """Fetches a model from the hub (HF_HOME, HF_TOKEN as usual), with the library's own bars."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    patterns = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
    if not tokenizer_only:
        patterns += ["*.safetensors"]
    try:
        return huggingface_hub.snapshot_download(hub_id, allow_patterns=patterns)
    except HFValidationError:
        raise ConfigError(f"MODEL={hub_id!r} is neither a folder nor a model hub's id") from None
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"MODEL={hub_id!r} cannot be downloaded: {reason}") from None
    except OSError as error:
        raise ConfigError(
            f"MODEL={hub_id!r}: the model hub cannot be reached ({type(error).__name__});"
            " give a folder, or set HF_ENDPOINT, HF_TOKEN or a proxy"
        ) from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.model", description=__doc__)
    parser.add_argument("--model", default=os.environ.get("FERRY_MODEL", ""))
    parser.add_argument("--var", type=Path, default=Path(os.environ.get("FERRY_VAR_DIR", "var")))
    parser.add_argument("--tokenizer-only", action="store_true")
    given = parser.parse_args()
    try:
        folder = prepare(given.model, given.var, tokenizer_only=given.tokenizer_only)
    except (ConfigError, FileNotFoundError) as error:
        print(f"ferry: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
