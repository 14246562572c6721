"""Whether a folder holds a checkpoint, as far as a look can tell. It must not load weights, nor torch."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.config_json import config_of
from minilab_gen.models.known_keys import left_over
from minilab_gen.models.weights import check_weight_files
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer
from minilab_gen.text.tokenizer_config import token_text, tokenizer_settings

_log = logging.getLogger(__name__)

_PADDING: Final = ("<pad>", "[PAD]", "<|pad|>", "<PAD>", "<|padding|>")
"""How a token is called that only pads."""

_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/([\w.-]+)")
"""What a model is called on the Hub: whose it is, and its own name."""


def check_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a folder that looks like a checkpoint. Raises CheckpointError for what can never be loaded."""
    if not folder.is_dir():
        raise CheckpointError(_missing(folder))
    config = read_config(folder)
    tokenizer = get_tokenizer(folder)
    spoken_vocabulary(folder, tokenizer, config.vocab_size)
    check_weight_files(folder)
    return tokenizer


def spoken_vocabulary(folder: Path, tokenizer: Tokenizer, rows: int) -> int:
    """How many ids a model with so many rows may choose from: those that its tokenizer knows.

    A token for padding is often added to a tokenizer and not to its model, which is never asked for it: it may be the
    one id beyond the rows. So may tokens that have a role and no id. Raises CheckpointError for any other.
    """
    known = tokenizer.numbered_size
    if known > rows and not (known == rows + 1 and rows in _padding_ids(folder, tokenizer)):
        raise CheckpointError(f"{folder / 'tokenizer.json'} must know at most the {rows} ids of the model, got {known}")
    return min(tokenizer.vocab_size, rows)


def _padding_ids(folder: Path, tokenizer: Tokenizer) -> list[int | None]:
    """The ids of tokens that only pad: the one that is declared, and those that are called so."""
    declared = token_text(tokenizer_settings(folder).get("pad_token"))
    return [tokenizer.token_id(name) for name in (declared, *_PADDING) if name is not None]


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


def log_left_over(folder: Path) -> None:
    """Say which keys of ``config.json`` are ignored."""
    names = left_over(read_json(folder / "config.json"))
    if names:
        _log.info("%s: keys that change nothing are ignored: %s", folder / "config.json", ", ".join(names))
    if "auto_map" in names:
        _log.warning("%s: code of the folder (auto_map) is not run; the architecture says what is computed", folder)


def _missing(folder: Path) -> str:
    rule = "a checkpoint must be a folder with config.json, tokenizer.json and weights"
    if folder.exists():
        return f"{rule}; {folder} is a file"
    found = _HUB_NAME.fullmatch(str(folder))
    remedy = f"; for a model of the Hub: hf download {folder} --local-dir {found[1]}" if found else ""
    return f"{rule}; there is no folder {folder}{remedy}"
