"""A line of text that is cropped to the cells of a terminal that it is given.

Whatever another program wrote becomes one harmless line here: this is the only way by which text enters the view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, split_graphemes
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from minilab_client.output import one_line

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
