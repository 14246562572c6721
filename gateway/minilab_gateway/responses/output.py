"""What a response puts out: messages and calls of functions, made step by step of the events of its job.

The steps follow from the job alone, so a stream that is gone on with anywhere, and the whole response, have the same
items. Where calls are read, text that may become a call is held back until that is decided: a token may have no step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from minilab_gateway.responses.objects import (
    Response,
    message,
    message_status,
    of_events,
    status_of,
    text_part,
    token_logprobs,
)
from minilab_gen.openai.response_items import CallItem, Item, MessageItem
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.text.call_json import ToolCall
from minilab_gen.text.call_parser import Piece
from minilab_gen.text.call_reader import CallReader, call_object

Step = tuple[str, dict[str, Any]]
"""An event of the stream: what its type says behind ``response.``, and its fields."""


class ResponseOutput:
    """The output of one response, as far as it has come."""

    def __init__(self, response: Response) -> None:
        self._response = response
        completion = response.completion
        reading = completion.calls
        self._reader = None if reading is None else CallReader(reading, completion.prompt_of(0), completion.tokenizer)
        self._done: list[dict[str, Any]] = []
        self._items: list[Item] = []
        """The same, for a conversation."""
        self._calls = 0
        self._has_begun = self._is_open = False
        self._texts: list[str] = []  # of the message that is open
        self._logprobs: list[dict[str, Any]] = []  # of those texts
        self._pending: list[dict[str, Any]] = []  # of tokens whose text is not decided yet

    @property
    def items(self) -> tuple[Item, ...]:
        """Those that are done."""
        return tuple(self._items)

    def objects(self) -> list[dict[str, Any]]:
        """All items as OpenAI's objects, with what there is of a message that goes on."""
        return [*self._done, self._message("in_progress")] if self._is_open else list(self._done)

    def of_token(self, token: TokenEvent) -> Iterator[Step]:
        """The steps of the next token."""
        yield from self._begin()
        self._pending += token_logprobs([token.token_id], [token.logprobs], self._response)
        if self._reader is None:
            yield self._delta(token.text)
        else:
            yield from self._of_pieces(self._reader.push(token.token_id, token.text))

    def of_end(self, end: EndEvent) -> Iterator[Step]:
        """What was left, and the end of the last item."""
        yield from self._begin()
        left: list[Piece] = [end.text] if self._reader is None else self._reader.flush(end.text)
        yield from self._of_pieces(filter(None, left))
        if not self._done and not self._is_open:
            yield from self._open()
        if self._is_open:
            yield from self._close(message_status(status_of(end)))

    def _begin(self) -> Iterator[Step]:
        """Without calls to read, there is a message at once."""
        if self._reader is None and not self._has_begun:
            self._has_begun = True
            yield from self._open()

    def _of_pieces(self, pieces: Iterable[Piece]) -> Iterator[Step]:
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
                continue
            yield from self._say(text)
            text = ""
            if self._is_open:
                yield from self._close("completed")
            yield from self._call(piece)
        yield from self._say(text)

    def _say(self, text: str) -> Iterator[Step]:
        if not text:
            return
        if not self._is_open:
            yield from self._open()
        yield self._delta(text)

    def _open(self) -> Iterator[Step]:
        self._is_open, self._texts, self._logprobs = True, [], []
        added = message(self._item_id("msg"), "in_progress", ())
        yield "output_item.added", {"output_index": len(self._done), "item": added}
        yield self._of_part("content_part.added", part=text_part("", ()))

    def _delta(self, text: str) -> Step:
        logprobs, self._pending = self._pending, []
        self._texts.append(text)
        self._logprobs += logprobs
        return self._of_part("output_text.delta", delta=text, logprobs=of_events(logprobs))

    def _close(self, status: str) -> Iterator[Step]:
        item = self._message(status)
        (part,) = item["content"]
        yield self._of_part("output_text.done", text=part["text"], logprobs=of_events(self._logprobs))
        yield self._of_part("content_part.done", part=part)
        yield "output_item.done", {"output_index": len(self._done), "item": item}
        self._is_open = False
        self._done.append(item)
        self._items.append(MessageItem("assistant", (part["text"],), item["id"]))

    def _call(self, call: ToolCall) -> Iterator[Step]:
        """A call comes whole, and the logprobs of its tokens have no place."""
        self._pending = []
        call_id = call_object(call, self._response.completion.public_id, 0, self._calls)["id"]
        self._calls += 1
        item_id = self._item_id(CallItem.prefix)
        item, place = CallItem(call_id, call.name, call.arguments, item_id), {"output_index": len(self._done)}
        done = item.to_api(item_id)
        yield "output_item.added", {**place, "item": item.to_api(item_id, "in_progress")}
        yield "function_call_arguments.delta", {"item_id": item_id, **place, "delta": call.arguments}
        yield "function_call_arguments.done", {"item_id": item_id, **place, "arguments": call.arguments}
        yield "output_item.done", {**place, "item": done}
        self._done.append(done)
        self._items.append(item)

    def _message(self, status: str) -> dict[str, Any]:
        return message(self._item_id("msg"), status, [text_part("".join(self._texts), self._logprobs)])

    def _of_part(self, kind: str, **fields: Any) -> Step:
        place = {"item_id": self._item_id("msg"), "output_index": len(self._done), "content_index": 0}
        return kind, {**place, **fields}

    def _item_id(self, prefix: str) -> str:
        """The id of the next item. Ids of an input end with a number, so these do not."""
        name, index = self._response.name, len(self._done)
        return f"{prefix}_{name}" if prefix == "msg" and not index else f"{prefix}_{name}_out{index}"


def output_of(response: Response, tokens: Iterable[TokenEvent], end: EndEvent | None) -> ResponseOutput:
    """The output of a response with these tokens; without an end, as far as they go."""
    output = ResponseOutput(response)
    steps = [output.of_token(token) for token in tokens]
    for _ in chain(*steps, () if end is None else output.of_end(end)):
        pass
    return output
