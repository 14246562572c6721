"""How an event of a stream is written."""

from __future__ import annotations

import json

from minilab_gateway.chunks import event


def test_an_event_is_one_line_for_every_reader_whatever_the_text() -> None:
    text = "a\nb\r\nc\x85d\u2028e\u2029f\x0bg\x1ch"

    head, data, *rest = event({"text": text}, "7").decode().split("\n")

    assert (head, rest) == ("id: 7", ["", ""])
    assert data.splitlines() == [data]
    assert json.loads(data.removeprefix("data: ")) == {"text": text}
