"""What has become of a batch's lines so far, and how fast it goes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

WINDOW_SECONDS: Final = 20.0
"""Seconds over which speed is measured: long enough to be steady, short enough to follow a worker that joins."""

_SAMPLE_SECONDS: Final = 0.5
"""Seconds between two samples."""


@dataclass(slots=True)
class Counters:
    """Lines of each kind."""

    total: int | None = None
    """Lines of the file that are not blank; None where that is not known."""
    kept: int = 0
    """Answered by an earlier run."""
    answered: int = 0
    failed: int = 0
    """With a job that ended badly."""
    refused: int = 0
    tokens: int = 0
    """Of the answers of this run."""

    @property
    def done(self) -> int:
        return self.with_answer + self.without_answer

    @property
    def with_answer(self) -> int:
        return self.kept + self.answered

    @property
    def without_answer(self) -> int:
        return self.failed + self.refused

    def summary(self, errors: str, seconds: float) -> str:
        """What to say at the end; ``errors`` is where the lines without an answer stand."""
        earlier = f" ({self.kept:,} earlier)" if self.kept else ""
        without = f", {self.without_answer:,} not: see {errors}" if self.without_answer else ""
        took = f"{self.tokens:,} tokens in {timedelta(seconds=round(seconds))}"
        return f"{self.with_answer:,} answered{earlier}{without}; {took}"


@dataclass(frozen=True, slots=True)
class _Count:
    seconds: float
    ended: int
    tokens: int


class Rate:
    """How fast jobs end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples = deque([_Count(clock(), 0, 0)])

    def take(self, counters: Counters) -> None:
        """Note how far it is now."""
        now = self._clock()
        if now - self._samples[-1].seconds >= _SAMPLE_SECONDS:
            self._samples.append(_Count(now, counters.answered + counters.failed, counters.tokens))
        while now - self._samples[0].seconds > WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        first, last = self._samples[0], self._samples[-1]
        return (last.tokens - first.tokens) / (last.seconds - first.seconds) if last is not first else None

    def seconds_left(self, counters: Counters) -> float | None:
        """Until all lines are done, if it goes on so; None where that cannot be known yet."""
        first, last = self._samples[0], self._samples[-1]
        ended = last.ended - first.ended
        if counters.total is None or not ended:
            return None
        return (counters.total - counters.done) * (last.seconds - first.seconds) / ended
