"""How an event of a stream is written."""

from __future__ import annotations

import json

import pytest
from minilab_gateway.chunks import Chunks, event
from minilab_gateway.completion import Completion, Found
from minilab_gateway.notes import Note

from minilab_gen.protocol.events import TokenEvent
from minilab_gen.text.tokenizer import get_tokenizer


def test_an_event_is_one_line_for_every_reader_whatever_the_text() -> None:
    text = "a\nb\r\nc\x85d\u2028e\u2029f\x0bg\x1ch"

    head, data, *rest = event({"text": text}, "7").decode().split("\n")

    assert (head, rest) == ("id: 7", ["", ""])
    assert data.splitlines() == [data]
    assert json.loads(data.removeprefix("data: ")) == {"text": text}


@pytest.mark.parametrize("letter", ["\x85", "\u2028", "\u2029"])
def test_the_chunk_of_a_token_is_one_line_too(letter: str) -> None:
    found = Found("job", ("job",), "base", ((5, 6),), Note("text", "", 1, "digest"))
    chunks = Chunks(Completion(found, get_tokenizer()), None)

    written = chunks.of_events(0, [TokenEvent(1, 7, f"a{letter}b")]).decode()

    id_line, data, *rest = written.splitlines()
    assert (id_line, rest) == ("id: 1", [""])
    assert json.loads(data.removeprefix("data: "))["choices"][0]["text"] == f"a{letter}b"
