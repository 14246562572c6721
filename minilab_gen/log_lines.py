"""How the lines of the log look and which are written; configured once, by the program.

What a line gives as ``extra`` is a field of its own in JSON, above all ``job_id``. One event is one line: control
characters in a message are escaped, so that no job can forge a line.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Final, Literal

import click

LogFormat = Literal["text", "json"]

_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the others were given with the line."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure(log_format: LogFormat, *, verbose: bool, quiet: bool) -> None:
    """Let lines go to stderr: by default start, stop, takeovers and whatever goes wrong, with ``verbose`` each job."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    for name_of_rq in ("rq", "rq.worker"):  # the second has a level of its own
        logging.getLogger(name_of_rq).setLevel(logging.WARNING)  # below, it shows jobs with their arguments and results
    logging.captureWarnings(True)


def say_error(text: str) -> None:
    """What ends the program, as its last line."""
    as_json = any(isinstance(handler.formatter, JsonLines) for handler in logging.root.handlers)
    if as_json:
        logging.getLogger(__name__).critical(text)
    else:
        click.echo(f"error: {text}", err=True)


class TextLines(logging.Formatter):
    """For people; the traceback of an exception follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], super().formatMessage(record))


class JsonLines(logging.Formatter):
    """For programs: one object a line, exceptions included."""

    def format(self, record: logging.LogRecord) -> str:
        given = {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **given,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
