"""What the job of a response says about it: its fields that the answer does not give, and its conversation.

So that any gateway can answer for it, also after others have restarted, and after the responses before it are gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from minilab_gateway.errors import ApiError
from minilab_gen.openai.response_bodies import AskedResponse
from minilab_gen.openai.response_items import Item, item_of_json

LARGEST_NOTE: Final = 2_000_000
"""Characters of a note as JSON: half of what a job's record may have."""


@dataclass(frozen=True, slots=True)
class ResponseNote:
    """Part of the note on the job of a response."""

    is_background: bool
    is_stored: bool
    """Whether it is found by its id."""
    previous: str | None
    """The id of the response that it goes on from, as it was given."""
    seed: int
    items: tuple[Item, ...]
    """The conversation that is answered, without instructions."""
    given_back: dict[str, Any]
    """Fields of the response as it is given."""

    @classmethod
    def of_json(cls, content: Any) -> ResponseNote | None:
        """None for what :meth:`to_json` has not made."""
        try:
            is_background, is_stored, previous, seed, items, given_back = content
            return cls(is_background, is_stored, previous, seed, tuple(map(item_of_json, items)), dict(given_back))
        except (ValueError, TypeError):
            return None

    def to_json(self) -> list[Any]:
        items = [item.to_json() for item in self.items]
        return [self.is_background, self.is_stored, self.previous, self.seed, items, self.given_back]

    def item_ids(self, name: str) -> list[str]:
        """The ids of its items; ``name`` is the id of its job."""
        return [item.item_id or f"{item.prefix}_{name}_{index}" for index, item in enumerate(self.items)]

    def conversation(self, name: str, reply: Sequence[Item]) -> tuple[Item, ...]:
        """Its items and the reply to them, for a response that goes on from it."""
        ids = self.item_ids(name)
        return (*(replace(item, item_id=item_id) for item, item_id in zip(self.items, ids, strict=True)), *reply)


def note_on(asked: AskedResponse, *, is_background: bool, is_stored: bool, previous: str | None) -> ResponseNote:
    """The note on what a body asks for. Raises ApiError for one that no job's record can hold."""
    seed = asked.asked.request.settings.seed
    note = ResponseNote(is_background, is_stored, previous, seed, asked.items, asked.given_back)
    _check_size(note.to_json())
    return note


def _check_size(content: Sequence[Any]) -> None:
    size = len(json.dumps(content))  # as RQ writes it
    if size > LARGEST_NOTE:
        rule = f"a response must have, with its conversation, at most {LARGEST_NOTE} characters as JSON"
        raise ApiError(400, f"{rule}, got {size}", param="input")
