"""Whether a folder holds a checkpoint, as far as a look can tell. It must not load weights, nor torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.families import config_of
from minilab_gen.models.weights import check_weight_files
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/([\w.-]+)")
"""What a model is called on the Hub: whose it is, and its own name."""


def check_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a folder that looks like a checkpoint. Raises CheckpointError for what can never be loaded."""
    if not folder.is_dir():
        raise CheckpointError(_missing(folder))
    config = read_config(folder)
    tokenizer = get_tokenizer(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} must know at most the {config.vocab_size} ids of the model, "
            f"got {tokenizer.vocab_size}"
        )
    check_weight_files(folder)
    return tokenizer


def read_config(folder: Path) -> ModelConfig:
    """The shape that ``config.json`` gives. Raises CheckpointError where it is missing or of no family served."""
    file = folder / "config.json"
    if (folder / "adapter_config.json").exists() and not file.exists():
        raise CheckpointError(
            f"{folder} must hold a whole model, got an adapter; merge it into its base with merge_and_unload of peft"
        )
    stored = read_json(file)
    try:
        return config_of(stored)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _missing(folder: Path) -> str:
    rule = "a checkpoint must be a folder with config.json, tokenizer.json and weights"
    if folder.exists():
        return f"{rule}; {folder} is a file"
    found = _HUB_NAME.fullmatch(str(folder))
    remedy = f"; for a model of the Hub: hf download {folder} --local-dir {found[1]}" if found else ""
    return f"{rule}; there is no folder {folder}{remedy}"
