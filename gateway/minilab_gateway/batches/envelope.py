"""What every line of a batch must be before the batch begins: a request for its endpoint, with a name of its own.

What stands in a body is looked at later: a body that asks for something else than there is fails its own line only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from minilab_gateway.batches.batch import Batch
from minilab_gen.batch.json_lines import RawLine, parse_object
from minilab_gen.batch.line import custom_id_of, key_of
from minilab_gen.batch.openai_form import envelope
from minilab_gen.errors import MiniLabError, RequestError
from minilab_gen.openai.bodies import Route
from minilab_gen.protocol import keys
from minilab_gen.request import shown

MAX_LINES: Final = 50_000
"""Lines of a batch, as OpenAI has it."""

_MOST_ERRORS: Final = 100
"""That are listed: who has written a thousand wrong lines has made one mistake."""

_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 4_000_000
"""Lines in one step: a twentieth of a second or so, so that other batches go on."""

_CODES: Final = {"method": "invalid_method", "url": "mismatched_url", "body": "invalid_body"}
_FIRST_WORD: Final = re.compile(r"[a-z_]+")

KnowsModel = Callable[[str], None]
"""Raises UnknownModelError for the plain name of a model that is not there."""


class LineError(Exception):
    """Why a line is none of a batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param

    def to_json(self, line: int | None) -> dict[str, Any]:
        return {"code": self.code, "line": line, "message": self.message, "param": self.param}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A line that can be given to its endpoint."""

    number: int
    custom_id: str
    route: Route
    body: dict[str, Any]
    model: str
    """Its plain name."""


def open_line(raw: RawLine, endpoint: str) -> Envelope:
    """What a line of a batch says. Raises LineError."""
    try:
        fields = parse_object(raw.content)
    except RequestError as error:
        code = "line_too_long" if raw.content is None else "invalid_json_line"
        raise LineError(code, str(error)) from error
    try:
        custom_id = custom_id_of(fields)
    except RequestError as error:
        code = "invalid_custom_id" if "custom_id" in fields else "missing_custom_id"
        raise LineError(code, str(error), "custom_id") from error
    try:
        route, body = envelope(fields)
    except RequestError as error:
        found = _FIRST_WORD.match(str(error))
        param = found[0] if found is not None and found[0] in _CODES else None
        raise LineError(_CODES.get(param or "", "invalid_field"), str(error), param) from error
    if route.url != endpoint:
        raise LineError("mismatched_url", f"url must be {endpoint}, which the batch names, got {route.url}", "url")
    return Envelope(raw.number, custom_id, route, body, _model_in(body))


def _model_in(body: dict[str, Any]) -> str:
    given = body.get("model")
    if not isinstance(given, str) or not given:
        code = "missing_model" if given is None else "invalid_model"
        raise LineError(code, f"body must name a model, got {shown(given)}", "model")
    plain = keys.without_owner(given)
    try:
        return keys.check_model_name(plain)
    except RequestError as error:
        raise LineError("model_not_found", f"no model can have this name: {error}", "model") from error


class Validation:
    """Looks at the lines of one batch, some at a time."""

    def __init__(self, batch: Batch, lines: Iterator[RawLine], knows_model: KnowsModel) -> None:
        self._batch, self._lines, self._knows_model = batch, lines, knows_model
        self._numbers: dict[int, int] = {}  # key of a custom_id: the line that has it
        self.model: str | None = None
        self.total = 0
        self.errors: list[dict[str, Any]] = []

    def step(self) -> bool:
        """Look at some more lines; True when all have been seen, or so many are wrong that the rest does not matter."""
        left = _BYTES_AT_ONCE
        for _ in range(_LINES_AT_ONCE):
            try:
                raw = next(self._lines, None)
            except RequestError as error:  # another encoding, in which nothing is a line
                self._refuse(None, LineError("invalid_encoding", str(error)))
                return True
            if raw is None:
                if not self.total:
                    self._refuse(None, LineError("empty_file", "a batch must have a line, got none"))
                return True
            self.total += 1
            self._look_at(raw)
            if len(self.errors) >= _MOST_ERRORS or self._is_too_long():
                return True
            left -= len(raw.content or b"")
            if left < 0:
                break
        return False

    def _is_too_long(self) -> bool:
        if self.total <= MAX_LINES:
            return False
        self._refuse(None, LineError("too_many_lines", f"a batch must have at most {MAX_LINES} lines, got more"))
        return True

    def _look_at(self, raw: RawLine) -> None:
        try:
            line = open_line(raw, self._batch.asked.endpoint)
            self._check_new(line)
            self._check_model(line)
        except LineError as error:
            self._refuse(raw.number, error)

    def _check_new(self, line: Envelope) -> None:
        first = self._numbers.setdefault(key_of(line.custom_id), line.number)
        if first != line.number:
            rule = f"custom_id must differ from line to line, got that of line {first} again"
            raise LineError("duplicate_custom_id", rule, "custom_id")

    def _check_model(self, line: Envelope) -> None:
        if self.model == line.model:
            return
        if self.model is not None:
            rule = f"model must be the same in all lines, {self.model}, got {line.model}"
            raise LineError("mismatched_model", rule, "model")
        models = self._batch.asked.models
        try:
            if models is not None and line.model not in models:
                raise LineError("model_not_found", f"no model {line.model} is there for this key", "model")
            self._knows_model(line.model)
        except MiniLabError as error:
            raise LineError("model_not_found", str(error), "model") from error
        self.model = line.model

    def _refuse(self, number: int | None, error: LineError) -> None:
        self.errors.append(error.to_json(number))
