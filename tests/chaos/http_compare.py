"""What one client was sent over HTTP, against an uninterrupted stream and against what ``generate`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from chaos.http_clients import DONE, data_of, id_of

Kind = Literal["lost", "doubled", "different"]


def stream_fault(sent: Sequence[bytes], whole: Sequence[bytes], expected: dict[str, Any]) -> tuple[Kind, str] | None:
    """What is wrong with the events of a stream that may have been continued, or None.

    ``whole`` are the events of the same stream without a break, ``expected`` is the answer in one piece.
    """
    ids = [found for event in sent if (found := id_of(event)) is not None]
    if len(set(ids)) < len(ids) or sent.count(DONE) > 1:
        return "doubled", "events came twice"
    several = len(expected["choices"]) > 1
    wanted, got = (_by_answer(whole), _by_answer(sent)) if several else (list(whole), list(sent))
    if got != wanted:
        if len(sent) == len(whole):
            return "different", "an event differs from that of an uninterrupted stream"
        return ("lost" if len(sent) < len(whole) else "doubled"), f"{len(sent)} events instead of {len(whole)}"
    joined = _joined([data_of(event) for event in sent[:-1]], expected)
    for name, value in joined.items():
        if value != expected[name]:
            return "different", f"{name} is {value} instead of {expected[name]}"
    return None


def is_beginning(events: Sequence[bytes], whole: Sequence[bytes]) -> bool:
    """Whether events are the first of a stream, but for the time at which it was asked for."""
    wanted = _by_answer(whole)
    return all(
        [{**data, "created": 0} for data in found]
        == [{**data, "created": 0} for data in wanted.get(index, [])[: len(found)]]
        for index, found in _by_answer(events).items()
    )


def _by_answer(events: Sequence[bytes]) -> dict[int, list[Any]]:
    """The events of each answer in their order: that between answers is free, and so are their common ids."""
    found: dict[int, list[Any]] = {}
    for event in events:
        data = data_of(event) if event != DONE else None
        index = data["choices"][0]["index"] if data and data["choices"] else -1
        found.setdefault(index, []).append(data)
    return found


def _joined(chunks: Sequence[dict[str, Any]], expected: dict[str, Any]) -> dict[str, Any]:
    """The answer in one piece, of what the chunks say."""
    choices = [_joined_choice(choice["index"], chunks, choice) for choice in expected["choices"]]
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    head = {name: chunks[0][name] for name in ("id", "created", "model")}
    return {**head, "choices": choices, **({"usage": usage[0]} if usage else {})}


def _joined_choice(index: int, chunks: Sequence[dict[str, Any]], expected: dict[str, Any]) -> dict[str, Any]:
    own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    *parts, last = own
    text = "".join(_text(part) for part in parts)
    has_message = "message" in expected
    ids = [token for part in own for token in part.get("token_ids", ())]
    choice: dict[str, Any] = {"index": index, "token_ids": ids}
    choice |= {"message": {"role": parts[0]["delta"]["role"], "content": text}} if has_message else {"text": text}
    choice |= {name: last[name] for name in ("finish_reason", "stop_reason", "complete") if name in last}
    listed = [part["logprobs"] for part in parts if part["logprobs"] is not None]
    if not listed:  # of no token there is no chunk that could list it
        return choice | {"logprobs": None if ids else expected["logprobs"]}
    if has_message:
        return choice | {"logprobs": {"content": [one for each in listed for one in each["content"]], "refusal": None}}
    return choice | {"logprobs": {name: [one for each in listed for one in each[name]] for name in listed[0]}}


def _text(part: dict[str, Any]) -> str:
    text = part["delta"].get("content", "") if "delta" in part else part["text"]
    assert isinstance(text, str)
    return text
