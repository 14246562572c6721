"""What goes to the terminal: data to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import click

_JSON_ERRORS: Final = "minilab_client.json_errors"
"""In what click's contexts share: whether errors are JSON."""

Colour = Literal["green", "yellow", "red"]
Cut = Literal["middle", "end"]

_NARROWEST: Final = 12
"""Characters that a cell keeps at least where a table is too wide."""

_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\t\n"}
"""What could move a terminal's cursor or change its settings; a model may write anything."""

_IN_LINE = {**_CONTROLS, **dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])}
"""The same, and without marks that turn the direction of writing, also of what stands behind the text that has them."""


def say(message: str) -> None:
    """Print a message for a person, in one line."""
    click.echo(one_line(message), err=True)


def say_error(kind: str, message: str, *, prefix: str = "error: ", as_json: bool | None = None) -> None:
    """Tell what went wrong, in one line on stderr: as JSON to a program that asked for JSON, else to a person."""
    context = click.get_current_context(silent=True)
    if as_json is None:
        as_json = context is not None and bool(context.meta.get(_JSON_ERRORS))
    if as_json:
        click.echo(json.dumps({"error": {"type": kind, "message": " ".join(message.split())}}), err=True)
    else:
        say(f"{prefix}{message}")


def report_errors_as_json(context: click.Context) -> None:
    """Let :func:`say_error` write JSON from now on."""
    context.meta[_JSON_ERRORS] = True


def one_line(text: str) -> str:
    """The text as it can stand among others in a line of a terminal: no controls, and one space for any white ones."""
    return " ".join(text.split()).translate(_IN_LINE)


def write(text: str) -> None:
    """Put text on stdout as it is, at the latest at the next :func:`flush`. On a terminal, controls become U+FFFD."""
    print(text.translate(_CONTROLS) if sys.stdout.isatty() else text, end="")


def write_word(word: str, colour: Colour) -> None:
    """Put a word of ours on stdout, coloured on a terminal whose user has not asked for none (no-color.org)."""
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(click.style(word, fg=colour) if coloured else word, end="")


def write_json(content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Put one line of strict JSON on stdout, escaped only where it has to be; it goes out with :func:`flush`."""
    ascii_only = sys.stdout.encoding.lower().replace("-", "") != "utf8"
    print(json.dumps(content, ensure_ascii=ascii_only, allow_nan=False))


def write_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], elastic: Mapping[str, Cut] | None = None
) -> None:
    """Put rows on stdout under their headings, a dash where there is nothing to say.

    On a terminal that is too narrow the cells of the ``elastic`` columns are cut, the widest first: in the middle, or
    at their end. A file gets them whole.
    """
    lines = [list(columns), *(["-" if cell in (None, "") else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cuts = {columns.index(name): cut for name, cut in (elastic or {}).items()} if sys.stdout.isatty() else {}
    _narrow(widths, list(cuts), shutil.get_terminal_size().columns)
    for line in lines:
        cells = [_cut(cell, widths[column], cuts.get(column, "end")) for column, cell in enumerate(line)]
        write("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() + "\n")


def _narrow(widths: list[int], elastic: Sequence[int], available: int) -> None:
    """Take from the widest of the elastic columns until all fit, or none can get narrower."""
    while sum(widths) + 2 * (len(widths) - 1) > available:
        widest = max(elastic, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def _cut(cell: str, width: int, cut: Cut) -> str:
    if len(cell) <= width:
        return cell
    kept = (width - 1) // 2 if cut == "middle" else 0
    return f"{cell[: width - 1 - kept]}…{cell[len(cell) - kept :]}"


def flush() -> None:
    """Hand over what was written. Raises BrokenPipeError when its reader has exited."""
    print(end="", flush=True)


def require_reader() -> None:
    """Raise BrokenPipeError when stdout's reader has exited, which a program with nothing to write would not see."""
    if not hasattr(select, "poll"):
        return
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), 0)
    except OSError:  # an output without a descriptor has no reader to lose
        return
    if any(event & select.POLLERR for _, event in output.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
