"""The items of a conversation, as OpenAI's responses have them: messages, calls of functions, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from minilab_gen.errors import RequestError
from minilab_gen.request import shown
from minilab_gen.text.call_json import is_arguments
from minilab_gen.text.chat import MAX_MESSAGES

CALL: Final = "function_call"
RESULT: Final = "function_call_output"
"""Types of items, as in OpenAI's API."""

_ROLES: Final = ("user", "system", "developer", "assistant")
_FIELDS: Final = ("type", "role", "content", "id", "status", "phase")
_TEXT_PARTS: Final = ("input_text", "output_text")
_PART_FIELDS: Final = ("type", "text", "annotations", "logprobs")
_CALL_FIELDS: Final = ("type", "call_id", "name", "arguments", "id", "status")
_RESULT_FIELDS: Final = ("type", "call_id", "output", "id", "status")


@dataclass(frozen=True, slots=True)
class MessageItem:
    """A message."""

    role: str
    texts: tuple[str, ...]
    item_id: str | None = None
    """None for one that came with the request whose response is made: its id follows from that of the response."""

    prefix: ClassVar[str] = "msg"
    """What ids of such items begin with, as at OpenAI."""

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


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call of a function that the model made."""

    call_id: str
    name: str
    arguments: str
    """An object in JSON."""
    item_id: str | None = None
    prefix: ClassVar[str] = "fc"

    def to_json(self) -> list[Any]:
        return [CALL, self.call_id, self.name, self.arguments, self.item_id]

    def call(self) -> dict[str, Any]:
        """The call in a message of a chat."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}

    def to_api(self, item_id: str, status: str = "completed") -> dict[str, Any]:
        """The item as OpenAI's object; without arguments while it is in progress."""
        return {
            "id": item_id,
            "type": CALL,
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "" if status == "in_progress" else self.arguments,
        }


@dataclass(frozen=True, slots=True)
class ResultItem:
    """What a call gave."""

    call_id: str
    output: str
    item_id: str | None = None
    prefix: ClassVar[str] = "fco"

    def to_json(self) -> list[Any]:
        return [RESULT, self.call_id, self.output, self.item_id]

    def message(self) -> dict[str, Any]:
        """The message of a chat."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.output}

    def to_api(self, item_id: str) -> dict[str, Any]:
        """The item as OpenAI's object."""
        said = {"call_id": self.call_id, "output": self.output}
        return {"id": item_id, "type": RESULT, "status": "completed", **said}


Item = MessageItem | CallItem | ResultItem


def item_of_json(content: Any) -> Item:
    """Raises ValueError, TypeError for what ``to_json`` of an item has not made."""
    kind, *texts, item_id = content
    if kind not in (CALL, RESULT):
        (texts,) = texts
    if kind not in (CALL, RESULT, *_ROLES) or not all(isinstance(text, str) for text in texts):
        raise ValueError(kind)
    if kind == CALL:
        call_id, name, arguments = texts
        return CallItem(call_id, name, arguments, item_id)
    if kind == RESULT:
        call_id, output = texts
        return ResultItem(call_id, output, item_id)
    return MessageItem(kind, tuple(texts), item_id)


def messages_of(items: Iterable[Item]) -> list[dict[str, Any]]:
    """The messages of a chat: calls belong to the message of the assistant beside them, as in the answer to a chat."""
    messages: list[dict[str, Any]] = []
    for item in items:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if isinstance(item, CallItem):
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            last.setdefault("tool_calls", []).append(item.call())
        elif isinstance(item, MessageItem) and item.role == "assistant" and last is not None and "tool_calls" in last:
            last["content"] = _behind(last["content"], item.message()["content"])
        else:
            messages.append(item.message())
    return messages


def _behind(before: str, text: str) -> str:
    """Two texts of one message, in lines of their own."""
    return before + text if not before or not text or text[0].isspace() else f"{before}\n{text}"


def input_items(given: object, earlier: Sequence[Item] = ()) -> list[Item]:
    """The items in ``input``, behind the earlier ones: a text, or a list of items. Raises RequestError."""
    if isinstance(given, str):
        return [MessageItem("user", (given,))]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        got = f"{len(given)} items" if isinstance(given, list) else shown(given)
        raise RequestError(f"input must be a text or a list of 1 to {MAX_MESSAGES} items, got {got}")
    called = {item.call_id for item in earlier if isinstance(item, CallItem)}
    items: list[Item] = []
    for index, said in enumerate(given):
        item = _item(f"input {index}", said)
        if isinstance(item, CallItem):
            called.add(item.call_id)
        if isinstance(item, ResultItem) and item.call_id not in called:
            rule = f"input {index} must have the call_id of a {CALL} before it"
            raise RequestError(f"{rule}, got {shown(item.call_id)}")
        items.append(item)
    return items


def _item(where: str, said: object) -> Item:
    if not isinstance(said, Mapping):
        raise RequestError(f"{where} must be an object, got {shown(said)}")
    match said.get("type", "message"):
        case "message":
            return _message(where, said)
        case "function_call":
            _check_fields(where, said, _CALL_FIELDS, ("call_id", "name", "arguments"))
            return CallItem(said["call_id"], said["name"], _arguments(where, said["arguments"]))
        case "function_call_output":
            return _result(where, said)
        case kind:
            rule = f"{where} must be of type message, {CALL} or {RESULT}, others are not offered here"
            raise RequestError(f"{rule}, got {shown(kind)}")


def _check_fields(where: str, said: Mapping[str, Any], known: Sequence[str], texts: Sequence[str]) -> None:
    unknown = [name for name, value in said.items() if name not in known and value is not None]
    if unknown:
        raise RequestError(f"{where} may have {', '.join(known)}, got {shown(min(unknown))}")
    for name in texts:
        if not isinstance(said.get(name), str):
            raise RequestError(f"{where} must have a text as {name}, got {shown(said.get(name))}")


def _arguments(where: str, text: str) -> str:
    """Those of a call as a template can have them."""
    if not is_arguments(text or "{}"):
        raise RequestError(f"{where} must have an object in JSON as arguments, got {shown(text)}")
    return text


def _result(where: str, said: Mapping[str, Any]) -> ResultItem:
    _check_fields(where, said, _RESULT_FIELDS, ("call_id",))
    output = said.get("output")
    if isinstance(output, list) and output:
        return ResultItem(said["call_id"], "\n".join(_text_of(where, part) for part in output))
    if not isinstance(output, str):
        raise RequestError(f"{where} must have a text or a list of parts as output, got {shown(output)}")
    return ResultItem(said["call_id"], output)


def _message(where: str, said: Mapping[str, Any]) -> MessageItem:
    if unknown := said.keys() - set(_FIELDS):
        raise RequestError(f"{where} may have {', '.join(_FIELDS)}, got {shown(min(unknown))}")
    if said.get("role") not in _ROLES:
        raise RequestError(f"{where} must have a role of {', '.join(_ROLES)}, got {shown(said.get('role'))}")
    content = said.get("content")
    if isinstance(content, str):
        return MessageItem(said["role"], (content,))
    if not isinstance(content, list) or not content:
        raise RequestError(f"{where} must have a text or a list of parts as content, got {shown(content)}")
    return MessageItem(said["role"], tuple(_text_of(where, part) for part in content))


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
