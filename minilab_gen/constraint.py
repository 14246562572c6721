"""What may be said of an answer's form to whatever chooses its tokens, which knows ids alone and no text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol


class Constraint(Protocol):
    """Which tokens may come next in one answer. It has seen the tokens so far, and is used by one thread at a time.

    What it allows depends on these tokens alone: an answer that is taken up again gets a new one that is told them.
    """

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is whole."""
        ...

    @property
    def must_end(self) -> bool:
        """Whether it is whole and nothing may follow."""
        ...

    @property
    def error(self) -> str | None:
        """Why it can say no more, if it cannot."""
        ...

    def accept(self, token_id: int) -> None:
        """Tell the next token of the answer, one of those allowed. ``prepare`` must follow before ``mask``."""
        ...

    def prepare(self, constraints: Sequence[Any]) -> None:
        """Compute what may come next in each of these, all of one compiler, without the interpreter's lock."""
        ...

    def mask(self, stop_ids: Collection[int]) -> int:
        """The address of a bit for each id of the vocabulary, in words of 32; ``stop_ids`` have it where it may end."""
        ...
