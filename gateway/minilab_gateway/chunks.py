"""A completion's stream of server-sent events, made of the events of its jobs.

Whatever process writes them, and whenever, the same tokens give the same bytes: each token has a chunk of its own, and
the event's ``id`` is the number of the token in its answer, with several answers one number for each, between dots. The
text that is left when an answer ends, its end, and the usage have the numbers behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minilab_gateway.completion import Completion
from minilab_gateway.errors import ApiError
from minilab_gateway.json_bytes import encoded
from minilab_gateway.notes import Note
from minilab_gateway.schemas import FIELDS
from minilab_gen.openai.objects import ending_of, usage_of
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.text.call_parser import Piece
from minilab_gen.text.call_reader import CallReader, call_object
from minilab_gen.text.openai_logprobs import of_chat, of_completion
from minilab_gen.text.stream_decoder import StreamDecoder

DONE: Final = b"data: [DONE]\n\n"

_OTHER_BREAKS: Final = "\x85\u2028\u2029"
"""Unicode's line breaks, at which Python's own ``splitlines`` and so httpx's ``iter_lines`` end a line."""


_OTHER_BREAK: Final = re.compile("|".join(_OTHER_BREAKS).encode())


def event(data: dict[str, Any], event_id: str | None = None, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + _id_line(event_id) + b"data: " + _one_line(encoded(data)) + b"\n\n"


def _id_line(event_id: str | None) -> bytes:
    return b"" if event_id is None else b"id: " + event_id.encode() + b"\n"


def _one_line(content: bytes) -> bytes:
    """JSON has no line breaks of its own, but for what only some readers take for one."""
    return _OTHER_BREAK.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), content)


def error_event(error: ApiError) -> bytes:
    """What ends a stream that failed: OpenAI's clients raise it."""
    return event(error.body())


_FIELD: Final = re.compile(r"[a-z_]+")


def failure(end: EndEvent, note: Note) -> ApiError:
    """What is said about a job that failed: 400 where that was for what its request asks."""
    reason = end.error or "no reason was recorded"
    if end.refused:
        found = _FIELD.match(reason)
        return ApiError(400, reason, param=found[0] if found and found[0] in FIELDS else note.form or None)
    return ApiError(500, f"the job failed after {end.tokens} tokens: {reason}", code="job_failed")


def last_number(end: EndEvent, completion: Completion) -> int:
    """The number of the event that tells why an answer ended: behind what was left, where that may be something."""
    return end.number + (bool(end.text) or completion.calls is not None)


@dataclass(slots=True)
class _Choice:
    """One answer, as far as it has come."""

    index: int
    seen: int
    """The number of the last event that the client has seen."""
    number: int = 0
    end: EndEvent | None = None
    decoder: StreamDecoder | None = None
    offset: int = 0
    """Where the next token begins in the text; counted where logprobs want to know it."""
    reader: CallReader | None = None
    """Of calls of tools, where they are read."""
    called: int = 0
    """Calls so far."""


class Chunks:
    """Writes the stream of one completion from any position on."""

    def __init__(self, completion: Completion, seen: Sequence[int] | None) -> None:
        """``seen`` are the numbers in the id of the last event that the client has seen, None for none."""
        self._completion = completion
        self._is_chat = completion.note.route == "chat"
        self._begins = seen is None
        numbers = seen or [0] * len(completion.job_ids)
        self._choices = [_Choice(index, number) for index, number in enumerate(numbers)]
        # What all chunks begin and end with, encoded once: each token has one.
        self._before = encoded(self._head())[:-1] + b',"choices":['
        self._after = b'],"usage":null}' if completion.note.usage else b"]}"
        self._has_ids = completion.note.event_ids
        if (reading := completion.calls) is not None:
            for choice in self._choices:
                choice.reader = CallReader(reading, completion.prompt_of(choice.index), completion.tokenizer)

    def first(self) -> bytes:
        """What is known before any token: whose words follow."""
        if not (self._is_chat and self._begins):
            return b""
        content = "" if self._completion.calls is None else None  # as in the whole answer, if there is none
        delta = {"role": "assistant", "content": content}
        *others, last = self._choices
        roles = [self._chunk(self._fields(choice, delta, None, None), None) for choice in others]
        return b"".join([*roles, self._chunk(self._fields(last, delta, None, None), self._position())])

    def of_events(self, index: int, events: Iterable[Event]) -> bytes:
        """The chunks of events of one answer. Raises ApiError for an answer that failed."""
        choice = self._choices[index]
        return b"".join(
            [self._of_token(choice, e) if isinstance(e, TokenEvent) else self._of_end(choice, e) for e in events]
        )

    def last(self) -> bytes:
        """What follows when all answers have ended."""
        if not self._completion.note.usage or self._is_all_seen():
            return DONE
        ends = [choice.end for choice in self._choices if choice.end is not None]
        chunk = {**self._head(), "choices": [], "usage": usage_of(ends, len(self._completion.prompts))}
        for choice in self._choices:
            choice.number += 1
        return event(chunk, self._position()) + DONE

    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that failed."""
        return error_event(error)

    def _is_all_seen(self) -> bool:
        return all(choice.seen > choice.number for choice in self._choices)

    def _of_token(self, choice: _Choice, token: TokenEvent) -> bytes:
        choice.number = token.number
        logprobs = self._logprobs(choice, token)
        pieces = [token.text] if choice.reader is None else choice.reader.push(token.token_id, token.text)
        content = self._content(choice, pieces)
        if token.number <= choice.seen:
            return b""
        return self._chunk(self._fields(choice, content, logprobs, [token.token_id]), self._position())

    def _content(self, choice: _Choice, pieces: Sequence[Piece]) -> Any:
        """What stands in a chunk: text, and calls whole."""
        if choice.reader is None:
            (text,) = pieces
            return {"content": text} if self._is_chat else text
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = []
        for piece in pieces:
            if not isinstance(piece, str):
                call = call_object(piece, self._completion.public_id, choice.index, choice.called)
                calls.append({"index": choice.called, **call})
                choice.called += 1
        return {**({"content": text} if text else {}), **({"tool_calls": calls} if calls else {})}

    def _of_end(self, choice: _Choice, end: EndEvent) -> bytes:
        if end.reason == "error":
            raise failure(end, self._completion.note)
        choice.end = end
        rest = b""
        left: Sequence[Piece] = [end.text] if choice.reader is None else choice.reader.flush(end.text)
        if any(left):
            choice.number, content = end.number, self._content(choice, left)
            if end.number > choice.seen:
                rest = self._chunk(self._fields(choice, content, None, []), self._position())
        choice.number = last_number(end, self._completion)
        if choice.number <= choice.seen:
            return b""
        fields = self._fields(choice, {} if self._is_chat else "", None, [])
        return rest + self._chunk(fields | ending_of(end, has_calls=choice.called > 0), self._position())

    def _logprobs(self, choice: _Choice, token: TokenEvent) -> dict[str, Any] | None:
        if token.logprobs is None:
            return None
        ids, listed, tokenizer = [token.token_id], [token.logprobs], self._completion.tokenizer
        if self._is_chat:
            return of_chat(ids, listed, tokenizer)
        if choice.decoder is None:
            choice.decoder = tokenizer.decoder(self._completion.prompt_of(choice.index))
        offset = choice.offset
        choice.offset += len(choice.decoder.push(token.token_id))
        return of_completion(ids, listed, [offset], tokenizer)

    def _chunk(self, choice: dict[str, Any], event_id: str | None) -> bytes:
        """The event of a chunk with this choice."""
        content = self._before + _one_line(encoded(choice)) + self._after
        return _id_line(event_id) + b"data: " + content + b"\n\n"

    def _fields(self, choice: _Choice, content: Any, logprobs: Any, ids: list[int] | None) -> dict[str, Any]:
        """A choice as it stands in a chunk."""
        fields: dict[str, Any] = {
            "index": choice.index,
            ("delta" if self._is_chat else "text"): content,
            "logprobs": logprobs,
            "finish_reason": None,
        }
        if ids is not None:
            fields["token_ids"] = ids
        return fields

    def _head(self) -> dict[str, Any]:
        completion = self._completion
        return {
            "id": completion.public_id,
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": completion.note.created,
            "model": completion.model,
        }

    def _position(self) -> str | None:
        if not self._has_ids:
            return None
        if len(self._choices) == 1:
            return str(max(self._choices[0].number, self._choices[0].seen))
        return ".".join(str(max(choice.number, choice.seen)) for choice in self._choices)
