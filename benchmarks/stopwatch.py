"""A stopwatch around functions of the product, which stay as they are."""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import click


@dataclass(frozen=True, slots=True)
class Watched:
    """Whose function is timed, its name, and what its time is called."""

    owner: object
    function: str
    part: str


class Stopwatch:
    """Adds up the time of functions while it is entered; afterwards they are what they were before."""

    def __init__(self, watched: Iterable[Watched], clock: Callable[[], float] = time.perf_counter) -> None:
        self._watched, self._clock = tuple(watched), clock
        self._undo = ExitStack()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.spans: dict[str, tuple[float, float]] = {}
        """From the start of a part's first call to the end of its last."""

    def __enter__(self) -> Self:
        for watched in self._watched:
            original = getattr(watched.owner, watched.function, None)
            if original is None:
                self._undo.close()
                raise click.ClickException(f"there is no {watched.function} in {watched.owner}: correct what is timed")
            setattr(watched.owner, watched.function, self._timed(original, watched.part))
            self._undo.callback(setattr, watched.owner, watched.function, original)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._undo.close()

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def timed(*arguments: Any, **named: Any) -> Any:
            start = self._clock()
            try:
                return function(*arguments, **named)
            finally:
                end = self._clock()
                self.seconds[part] += end - start
                self.calls[part] += 1
                self.spans[part] = (self.spans.get(part, (start, end))[0], end)

        return timed
