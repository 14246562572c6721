"""Where a model comes from: what a checkpoint answers, whatever it is, and which kind a path names.

It must not load torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from minilab_gen.models.checkpoint_folder import FolderCheckpoint

if TYPE_CHECKING:
    from minilab_gen.models.config import ModelConfig
    from minilab_gen.models.weights import RawTensor
    from minilab_gen.text.chat import ChatFormat
    from minilab_gen.text.tokenizer import Tokenizer

_GGUF_SUFFIX: Final = ".gguf"
_GGUF_MAGIC: Final = b"GGUF"


class Weights(Protocol):
    """The tensors of a checkpoint, checked before."""

    def read(self, name: str, rows: int | None = None) -> RawTensor:
        """The first rows of a tensor, or all. Raises CheckpointError where they cannot be read any more."""
        ...


class Checkpoint(Protocol):
    """A model on disk. All that it answers may raise CheckpointError, naming what is wrong."""

    @property
    def path(self) -> Path:
        """The folder or file that was named."""
        ...

    def check(self) -> Tokenizer:
        """The tokenizer, if the model looks as if it can be loaded; it reads no weights."""
        ...

    def open(self) -> tuple[Weights, ModelConfig]:
        """The tensors, which are all there, and the shape of the model without ids that have no text."""
        ...

    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        ...

    def chat_format(self) -> ChatFormat | None:
        """How conversations are written; None where the model does not say."""
        ...

    def stop_ids(self) -> tuple[int, ...]:
        """The ids at which the model ends a text by itself."""
        ...

    def files(self) -> Iterable[Path]:
        """The files that it is read from; some may be missing."""
        ...

    def identity(self) -> Iterable[str | Path]:
        """All that its tokens depend on: texts, and files by their content."""
        ...


def checkpoint_of(path: Path) -> Checkpoint:
    """The checkpoint of this path, by what is there. It reads next to nothing."""
    if not _is_gguf(path):
        return FolderCheckpoint(path)
    from minilab_gen.models.gguf_checkpoint import GgufCheckpoint  # the package gguf, which folders do without

    return GgufCheckpoint(path)


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix.lower() == _GGUF_SUFFIX:
        return True
    with path.open("rb") as file:
        return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
