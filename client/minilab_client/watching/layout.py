"""How many lines of a screen each part of the view gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minilab_client.watching.snapshot import Counts

_SPACIOUS: Final = 20
"""Lines from which on there is room for blank ones and a high plot; the classic terminal has 24."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Lines for each part, without its heading."""

    plot: int
    models: int
    workers: int
    running: int
    ended: int
    spacious: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The height of a screen."""

    height: int

    def rows(self, counts: Counts) -> Rows:
        """What fits: a few models and workers, then running jobs, then those that ended; a free line goes to others."""
        spacious = self.height >= _SPACIOUS
        plot = 3 if spacious else 1
        fixed = 1 + plot + 4 + (5 if spacious else 0)  # title, plot, headings and the blank lines between the parts
        left = max(0, self.height - fixed)
        models = min(counts.models, max(1, left // 4))
        left = max(0, left - max(1, models))
        workers = min(counts.workers, max(1, left // 4))
        left = max(0, left - max(1, workers))
        ended = min(counts.ended, left // 3)
        running = min(counts.running, left - ended)
        ended = min(counts.ended, left - running)
        workers += min(counts.workers - workers, left - running - ended)
        return Rows(plot, models, workers, running, ended, spacious)
