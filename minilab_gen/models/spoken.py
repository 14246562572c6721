"""How many ids a model may choose from: those that its tokenizer knows. It must not load torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.text.tokenizer import Tokenizer

_PADDING: Final = ("<pad>", "[PAD]", "<|pad|>", "<PAD>", "<|padding|>")
"""How a token is called that only pads."""


def spoken_rows(file: Path, tokenizer: Tokenizer, rows: int, pad_token: str | None) -> int:
    """How many ids a model with so many rows may choose from, by the tokenizer that ``file`` describes.

    A token for padding is often added to a tokenizer and not to its model, which is never asked for it: it may be the
    one id beyond the rows. So may tokens that have a role and no id. Raises CheckpointError for any other.
    """
    known = tokenizer.numbered_size
    padding = [tokenizer.token_id(name) for name in (pad_token, *_PADDING) if name is not None]
    if known > rows and not (known == rows + 1 and rows in padding):
        raise CheckpointError(f"{file} must know at most the {rows} ids of the model, got {known}")
    return min(tokenizer.vocab_size, rows)
