"""The files beside a ``tokenizer.json``. It must know neither torch nor Redis, nor load the tokenizers library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from minilab_gen.json_file import read_json

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
ADDED_TOKENS: Final = "added_tokens.json"
"""Ids of tokens, in older folders."""
SPECIAL_TOKENS_MAP: Final = "special_tokens_map.json"
"""Roles of tokens, in older folders."""

DECLARING_FILES: Final = (TOKENIZER_CONFIG, ADDED_TOKENS, SPECIAL_TOKENS_MAP)
"""Files that may declare tokens which ``tokenizer.json`` lacks."""

TOKEN_ROLES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""What a special token may be for, in the order in which transformers adds those that are missing."""


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``, with what older folders have in a file of its own.

    As in transformers, that file counts only where the other one gives no ids of added tokens. Raises CheckpointError.
    """
    config = _content(folder / TOKENIZER_CONFIG)
    return config if "added_tokens_decoder" in config else config | _content(folder / SPECIAL_TOKENS_MAP)


def token_text(token: Any) -> str | None:
    """How a special token is spelled; old files write more about it than that."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _content(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}
