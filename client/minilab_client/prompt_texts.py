"""How prompts begin, in words where the tokenizer is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis

from minilab_client.output import one_line
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol.cards import read_card, read_tokenizer
from minilab_gen.text.tokenizer import Tokenizer

LONGEST: Final = 60
"""Characters of a beginning: enough to know one's own prompt again."""


class PromptTexts:
    """Reads each model's tokenizer once, when its first prompt is to be shown."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._tokenizers: dict[str, Tokenizer | None] = {}

    def beginning(self, model: str, first_ids: Sequence[int], count: int) -> str | None:
        """The beginning of a prompt in one line; None where no tokenizer is known, or its tokens have no text."""
        tokenizer = self.tokenizer(model)
        text = "" if tokenizer is None else one_line(tokenizer.decode(first_ids).rstrip("\N{REPLACEMENT CHARACTER}"))
        is_whole = count <= len(first_ids) and len(text) <= LONGEST
        return (text if is_whole else f"{text[: LONGEST - 1].rstrip()}…") if text else None

    def tokenizer(self, model: str) -> Tokenizer | None:
        """That of a model; None where it cannot be read."""
        if model not in self._tokenizers:
            self._tokenizers[model] = None
            with suppress(MiniLabError):  # no card, or one that has expired or cannot be read
                self._tokenizers[model] = read_tokenizer(self._connection, read_card(self._connection, model))
        return self._tokenizers[model]


def shown_prompt(text: str | None, count: int | None) -> str | None:
    """The beginning where it is known, else how many ids there are."""
    if text is not None or count is None:
        return text
    return f"{count} id{'' if count == 1 else 's'}"
