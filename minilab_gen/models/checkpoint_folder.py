"""Checkpoint folders in the layout of Hugging Face: ``config.json``, ``tokenizer.json`` and weights.

A first look loads no weights. Nothing here loads torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.config_json import config_of
from minilab_gen.models.known_keys import left_over
from minilab_gen.models.quantized_folders import check_not_quantized
from minilab_gen.models.spoken import spoken_rows
from minilab_gen.models.tensors import names_of, stored_tensors
from minilab_gen.models.weights import StoredWeights, check_weight_files, weight_files
from minilab_gen.text.chat import ChatFormat, read_chat_format
from minilab_gen.text.declared_tokens import read_declared_tokens
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer
from minilab_gen.text.tokenizer_config import DECLARING_FILES, token_text, tokenizer_settings

_log = logging.getLogger(__name__)

_FOLLOWING: Final = (
    *("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias"),
    *("attention.bias", "attention.masked_bias"),
)
"""Ends of names that may stand in a folder besides: angles and masks, which follow from the config."""

_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/([\w.-]+)")
"""What a model is called on the Hub: whose it is, and its own name."""


@dataclass(frozen=True, slots=True)
class FolderCheckpoint:
    """A :class:`~minilab_gen.models.source.Checkpoint` in a folder."""

    path: Path

    def check(self) -> Tokenizer:
        """The tokenizer of a folder that looks like a checkpoint; CheckpointError for what can never be loaded."""
        if not self.path.is_dir():
            raise CheckpointError(_missing(self.path))
        config = read_config(self.path)
        tokenizer = self.tokenizer()
        _spoken_vocabulary(self.path, tokenizer, config.vocab_size)
        check_weight_files(self.path)
        return tokenizer

    def open(self) -> tuple[StoredWeights, ModelConfig]:
        """The tensors, which are all there, and the shape of the model without ids that have no text."""
        config = read_config(self.path)
        _log_left_over(self.path)
        files = StoredWeights(self.path)
        config = _with_its_head(config, files)
        ignored = (*_FOLLOWING, names_of(config)["head"])  # and a tied head that is stored again
        files.check(((each.stored, each.stored_shape) for each in stored_tensors(config)), ignored)
        if not (self.path / "tokenizer.json").exists():  # all ids may be chosen
            return files, config
        return files, replace(config, vocab_size=_spoken_vocabulary(self.path, self.tokenizer(), config.vocab_size))

    def tokenizer(self) -> Tokenizer:
        """What ``tokenizer.json`` and the files beside it describe."""
        return get_tokenizer(self.path)

    def chat_format(self) -> ChatFormat | None:
        """What ``chat_template.jinja`` or ``tokenizer_config.json`` says."""
        return read_chat_format(self.path)

    def stop_ids(self) -> tuple[int, ...]:
        """What ``generation_config.json`` or ``config.json`` says."""
        for name in ("generation_config.json", "config.json"):
            if (self.path / name).exists():
                stop = read_json(self.path / name).get("eos_token_id")
                ids = stop if isinstance(stop, list) else [stop]
                if stop is not None and all(type(token) is int and token >= 0 for token in ids):
                    return tuple(ids)
                if stop is not None:
                    rule = "eos_token_id must be an id or a list of ids"
                    raise CheckpointError(f"{self.path / name}: {rule}, got {stop!r}")
        return ()

    def files(self) -> list[Path]:
        """The files that the model is read from, there or not."""
        names = ("config.json", "tokenizer.json", *DECLARING_FILES)
        return [*(self.path / name for name in names), *weight_files(self.path)]

    def identity(self) -> Iterator[str | Path]:
        """All that tokens depend on; of the files that declare tokens only that, since a template has no id."""
        yield read_declared_tokens(self.path).described()
        yield from (self.path / "config.json", *weight_files(self.path), self.path / "tokenizer.json")


def check_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a folder that looks like a checkpoint. Raises CheckpointError for what can never be loaded."""
    return FolderCheckpoint(folder).check()


def _spoken_vocabulary(folder: Path, tokenizer: Tokenizer, rows: int) -> int:
    """How many ids the model may choose from. Raises CheckpointError for a tokenizer of another model."""
    declared = token_text(tokenizer_settings(folder).get("pad_token"))
    return spoken_rows(folder / "tokenizer.json", tokenizer, rows, declared)


def _with_its_head(config: ModelConfig, files: StoredWeights) -> ModelConfig:
    """The shape with the head that is stored: as in transformers, one that differs from the embedding is not tied."""
    head, embedding = names_of(config)["head"], names_of(config)["embedding"]
    if not config.tied_embeddings or head not in files:
        return config
    if embedding not in files:
        files.rename(head, embedding)  # some store what is tied under its other name
    elif not files.equal(head, embedding):
        _log.warning("tie_word_embeddings is true, but %s is stored and differs from %s: it is used", head, embedding)
        return replace(config, tied_embeddings=False)
    return config


def read_config(folder: Path) -> ModelConfig:
    """The shape that ``config.json`` gives. Raises CheckpointError where it is missing or of no family served."""
    file = folder / "config.json"
    if (folder / "adapter_config.json").exists() and not file.exists():
        raise CheckpointError(
            f"{folder} must hold a whole model, got an adapter; merge it into its base with merge_and_unload of peft"
        )
    if not file.exists() and (found := sorted(folder.glob("*.gguf"))):
        raise CheckpointError(f"{folder} has no config.json, but a GGUF file, which is served by its name: {found[0]}")
    stored = read_json(file)
    check_not_quantized(folder, stored)
    try:
        return config_of(stored)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _log_left_over(folder: Path) -> None:
    """Say which keys of ``config.json`` are ignored."""
    names = left_over(read_json(folder / "config.json"))
    if names:
        _log.info("%s: keys that change nothing are ignored: %s", folder / "config.json", ", ".join(names))
    if "auto_map" in names:
        _log.warning("%s: code of the folder (auto_map) is not run; the architecture says what is computed", folder)


def _missing(folder: Path) -> str:
    if folder.suffix == ".gguf":
        return f"there is no file {folder}"
    rule = "a checkpoint must be a folder with config.json, tokenizer.json and weights, or a GGUF file"
    if folder.exists():
        return f"{rule}; {folder} is a file"
    found = _HUB_NAME.fullmatch(str(folder))
    remedy = f"; for a model of the Hub: hf download {folder} --local-dir {found[1]}" if found else ""
    return f"{rule}; there is no folder {folder}{remedy}"
