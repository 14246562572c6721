"""Turns the lines of a file into requests, and into reasons those that break a rule.

It keeps some 200 bytes for each line, to see a custom_id that comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minilab_client.batch import own_form
from minilab_gen.asked_model import AskedModel
from minilab_gen.batch import openai_form
from minilab_gen.batch.json_lines import RawLine, parse_object
from minilab_gen.batch.line import BadLine, Form, Line, checked_line, custom_id_of, key_of
from minilab_gen.errors import RequestError
from minilab_gen.openai.bodies import CHAT_COMPLETIONS


class LineReader:
    """Reads the lines of one file for one model."""

    def __init__(self, model: AskedModel) -> None:
        self._model = model
        self._numbers: dict[int, int] = {}  # key of a custom_id: the line that has it

    def read(self, raw_lines: Iterable[RawLine]) -> Iterator[Line | BadLine]:
        for raw in raw_lines:
            yield self._read(raw)

    def _read(self, raw: RawLine) -> Line | BadLine:
        custom_id = None
        try:
            fields = parse_object(raw.content)
            custom_id = custom_id_of(fields)
            line = self._line(raw.number, custom_id, fields)
            self._check_new(line)
        except RequestError as error:
            return BadLine(raw.number, custom_id, str(error))
        return line

    def _line(self, number: int, custom_id: str, fields: dict[str, Any]) -> Line:
        form = _form_of(fields)
        read = own_form.read if form == "minilab" else openai_form.read
        return checked_line(number, custom_id, form, read(fields, self._model), self._model)

    def _check_new(self, line: Line) -> None:
        """A line that cannot be answered takes no custom_id away from another."""
        first = self._numbers.setdefault(key_of(line.custom_id), line.number)
        if first != line.number:
            raise RequestError(f"custom_id must differ from line to line, got that of line {first} again")


def _form_of(fields: dict[str, Any]) -> Form:
    if not openai_form.MARKS & fields.keys():
        return "minilab"
    return "openai-chat" if fields.get("url") == CHAT_COMPLETIONS.url else "openai"
