"""What the view is made of, beside rich's tables: a line that is cropped to its cells, and a plot of blocks.

Whatever another program wrote becomes one harmless line here: this is the only way by which text enters the view.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.cells import cell_len, split_graphemes
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from minilab_client.output import one_line
from minilab_client.watching.snapshot import WINDOW, Speed

_LEAST: Final = 4
"""Cells below which a column says nothing any more."""


@dataclass(frozen=True, slots=True)
class Cropped:
    """One line that shows its beginning, or its end where it is text that grows."""

    text: str
    style: str = ""
    shows_end: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        more = "..." if options.ascii_only else "…"
        yield Text(self._fit(one_line(self.text), options.max_width, more), style=self.style, no_wrap=True, end="")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = cell_len(one_line(self.text))
        return Measurement(min(_LEAST, longest), longest)

    def _fit(self, line: str, width: int, more: str) -> str:
        spans, cells = split_graphemes(line)
        if cells <= width:
            return line
        width_left = width - cell_len(more)
        if width_left <= 0:
            return more[:width]
        if self.shows_end:
            spans.reverse()
        kept = 0
        for start, end, size in spans:
            if kept + size > width_left:
                return more + line[end:] if self.shows_end else line[:start] + more
            kept += size
        raise AssertionError("what is wider than its cells must be cut somewhere")


CELLS: Final = 60
"""Columns of the widest plot: one a second."""

_BLOCKS: Final = " ▁▂▃▄▅▆▇█·"
_ASCII_BLOCKS: Final = " .:-=+*##?"
"""From nothing to a full cell, then what is not known."""

_PARTS: Final = 8
"""Heights that a cell can show, beside none."""


def columns(speed: Speed, cells: int) -> list[float | None]:
    """The mean speed in each of so many equal parts of the last minute, oldest first; None before the watch began.

    The parts lie at fixed times, so that a plot moves to the left as time goes on and does not flicker.
    """
    seconds = WINDOW / cells
    last = math.floor(speed.looked_at / seconds)
    times = [sample.at for sample in speed.samples]
    found: list[float | None] = []
    for part in range(last - cells + 1, last + 1):
        first, behind = bisect_left(times, part * seconds), bisect_left(times, (part + 1) * seconds)
        # A sample stands for all the time since the one before it, also for parts without a look.
        inside = speed.samples[first : max(behind, first + 1)]
        began = (part + 1) * seconds > speed.began_at
        found.append(sum(sample.tokens_per_second for sample in inside) / len(inside) if began and inside else None)
    return found


def plot(values: Sequence[float | None], rows: int, *, ascii_only: bool = False) -> list[Text]:
    """Lines of a plot, the top one first. What is not known is a dot, or a question mark."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    top = max((value for value in values if value), default=1.0)
    parts = [None if value is None else max(1, round(value / top * rows * _PARTS)) for value in values]
    lines = []
    for row in reversed(range(rows)):
        line = Text(no_wrap=True)
        for is_known, run in groupby(parts, lambda height: height is not None):
            cells = (_cell(height, row, blocks) for height in run)
            line.append("".join(cells), style="cyan" if is_known else "dim")
        lines.append(line)
    return lines


def _cell(height: int | None, row: int, blocks: str) -> str:
    """What stands in a row, counted from below, of a column of this height."""
    if height is None:
        return " " if row else blocks[-1]
    return blocks[min(max(height - row * _PARTS, 0), _PARTS)]
