"""The items of a conversation, as OpenAI's responses have them: messages of one or more texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from minilab_gen.errors import RequestError
from minilab_gen.request import shown
from minilab_gen.text.chat import MAX_MESSAGES

_ROLES: Final = ("user", "system", "developer", "assistant")
_FIELDS: Final = ("type", "role", "content", "id", "status", "phase")
_TEXT_PARTS: Final = ("input_text", "output_text")
_PART_FIELDS: Final = ("type", "text", "annotations", "logprobs")


@dataclass(frozen=True, slots=True)
class Item:
    """A message."""

    role: str
    texts: tuple[str, ...]
    item_id: str | None = None
    """None for one that came with the request whose response is made: its id follows from that of the response."""

    @classmethod
    def of_json(cls, content: Any) -> Item:
        """Raises ValueError, TypeError for what :meth:`to_json` has not made."""
        role, texts, item_id = content
        if role not in _ROLES or not all(isinstance(text, str) for text in texts):
            raise ValueError(role)
        return cls(role, tuple(texts), item_id)

    def to_json(self) -> list[Any]:
        return [self.role, list(self.texts), self.item_id]

    def message(self) -> dict[str, Any]:
        """The message of a chat; parts of a text stand in lines of their own, as there."""
        return {"role": self.role, "content": "\n".join(self.texts)}

    def to_api(self, item_id: str) -> dict[str, Any]:
        """The item as OpenAI's object."""
        said = self.role == "assistant"
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if said else {}
        kind = "output_text" if said else "input_text"
        return {
            "id": item_id,
            "type": "message",
            "status": "completed",
            "role": self.role,
            "content": [{"type": kind, "text": text, **more} for text in self.texts],
        }


def input_items(given: object) -> list[Item]:
    """The items in ``input``: a text, or a list of messages. Raises RequestError."""
    if isinstance(given, str):
        return [Item("user", (given,))]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        got = f"{len(given)} items" if isinstance(given, list) else shown(given)
        raise RequestError(f"input must be a text or a list of 1 to {MAX_MESSAGES} messages, got {got}")
    return [_item(f"input {index}", said) for index, said in enumerate(given)]


def _item(where: str, said: object) -> Item:
    if not isinstance(said, Mapping):
        raise RequestError(f"{where} must be an object, got {shown(said)}")
    kind = said.get("type", "message")
    if kind != "message":
        raise RequestError(f"{where} must be of type message, others are not offered here, got {shown(kind)}")
    if unknown := said.keys() - set(_FIELDS):
        raise RequestError(f"{where} may have {', '.join(_FIELDS)}, got {shown(min(unknown))}")
    if said.get("role") not in _ROLES:
        raise RequestError(f"{where} must have a role of {', '.join(_ROLES)}, got {shown(said.get('role'))}")
    content = said.get("content")
    if isinstance(content, str):
        return Item(said["role"], (content,))
    if not isinstance(content, list) or not content:
        raise RequestError(f"{where} must have a text or a list of parts as content, got {shown(content)}")
    return Item(said["role"], tuple(_text_of(where, part) for part in content))


def _text_of(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else part
    if not isinstance(part, Mapping) or kind not in _TEXT_PARTS:
        raise RequestError(
            f"{where} must have parts of type {' or '.join(_TEXT_PARTS)}, others are not offered here, "
            f"got {shown(kind)}"
        )
    if unknown := part.keys() - set(_PART_FIELDS):
        raise RequestError(f"{where} may have parts with {', '.join(_PART_FIELDS)}, got {shown(min(unknown))}")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where} must have parts with a text, got {shown(text)}")
    return text
