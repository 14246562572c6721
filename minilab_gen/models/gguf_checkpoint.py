"""A GGUF file as a checkpoint: configuration, tokenizer, chat template and weights in one file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.config_json import config_of
from minilab_gen.models.gguf_config import described_config, layout_of
from minilab_gen.models.gguf_header import GgufHeader, read_header
from minilab_gen.models.gguf_tokenizer import GgufTokens
from minilab_gen.models.gguf_weights import GgufWeights
from minilab_gen.models.spoken import spoken_rows
from minilab_gen.models.tensors import stored_tensors
from minilab_gen.text.chat import ChatFormat, checked_format
from minilab_gen.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_TEMPLATE: Final = "tokenizer.chat_template"


@dataclass(frozen=True)
class GgufCheckpoint:
    """A :class:`~minilab_gen.models.source.Checkpoint` in a file."""

    path: Path

    def check(self) -> Tokenizer:
        """The tokenizer of a file that is whole; all but the numbers of its tensors is looked at."""
        self._open()
        self.stop_ids()
        return self.tokenizer()

    def open(self) -> tuple[GgufWeights, ModelConfig]:
        """The tensors, and the shape of the model without ids that have no text."""
        weights, config = self._open()
        return weights, replace(config, vocab_size=self._spoken(config.vocab_size))

    def tokenizer(self) -> Tokenizer:
        """What the keys under ``tokenizer.ggml`` describe."""
        return self._tokenizer

    def chat_format(self) -> ChatFormat | None:
        """The template without a name; those that have one are for other ends, tools for instance."""
        template = self._header.get(_TEMPLATE, str)
        names = sorted(key for key in self._header.metadata if key.startswith(f"{_TEMPLATE}."))
        if names:
            _log.info("%s: chat templates that are not used: %s", self.path, ", ".join(names))
        if template is None:
            _log.info("%s has no %s: it answers texts, and no chats", self.path, _TEMPLATE)
            return None
        _log.info("%s: chats are written by its own %s of %d characters", self.path, _TEMPLATE, len(template))
        return checked_format(self.path, template, self._tokens.named())

    def stop_ids(self) -> tuple[int, ...]:
        """The ends of a text, of a turn and of a message, where the file has them."""
        return self._tokens.stop_ids()

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def identity(self) -> Iterator[str | Path]:
        """The file, and the release that unpacks it."""
        yield f"gguf {version('gguf')}"
        yield self.path

    @cached_property
    def _header(self) -> GgufHeader:
        return read_header(self.path)

    @cached_property
    def _tokens(self) -> GgufTokens:
        return GgufTokens(self._header)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._tokens.tokenizer()

    def _open(self) -> tuple[GgufWeights, ModelConfig]:
        try:
            config = config_of(described_config(self._header))
        except CheckpointError as error:
            raise error if str(self.path) in str(error) else CheckpointError(f"{self.path}: {error}") from error
        weights = GgufWeights(self._header, layout_of(self._header, config))
        weights.check((each.stored, each.stored_shape) for each in stored_tensors(config))
        self._spoken(config.vocab_size)
        return weights, config

    def _spoken(self, rows: int) -> int:
        return spoken_rows(self.path, self._tokenizer, rows, self._tokens.named().get("pad_token"))
