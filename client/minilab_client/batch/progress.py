"""How far a batch is and how fast it goes: counted here, shown on stderr.

A bar on a terminal, a line now and then elsewhere, nothing with --quiet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

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


LINE_SECONDS: Final = 10.0
"""Seconds between two lines where stderr is no terminal: a log of an hour stays readable."""


class Display(Protocol):
    """One way to show it."""

    def show(self, counters: Counters) -> None: ...


class Silence:
    """Nothing."""

    def show(self, counters: Counters) -> None:
        pass


class Lines:
    """A line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = Rate(clock), clock
        self._next = clock() + LINE_SECONDS

    def show(self, counters: Counters) -> None:
        self._rate.take(counters)
        if self._clock() >= self._next:
            self._next = self._clock() + LINE_SECONDS
            total = "" if counters.total is None else f" of {counters.total:,}"
            parts = [
                f"{counters.done:,}{total} done",
                f"{counters.without_answer:,} failed",
                *speed(self._rate, counters),
            ]
            click.echo(", ".join(parts), err=True)


class Bar:
    """A bar that grows."""

    def __init__(self, progress: Progress) -> None:
        self._rate, self._progress = Rate(), progress
        self._task = progress.add_task("", total=None, failed="", speed="")

    def show(self, counters: Counters) -> None:
        self._rate.take(counters)
        failed = f"[red]{counters.without_answer:,} failed[/red]" if counters.without_answer else "0 failed"
        self._progress.update(
            self._task,
            completed=counters.done,
            total=counters.total,
            failed=failed,
            speed=" · ".join(speed(self._rate, counters)),
        )


@contextmanager
def display(*, quiet: bool) -> Iterator[Display]:
    """The way to show it that fits stderr."""
    console = Console(stderr=True)
    if quiet:
        yield Silence()
    elif not console.is_terminal:
        yield Lines()
    else:
        columns = (
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            TextColumn("[cyan]{task.fields[speed]}"),
        )
        with Progress(*columns, console=console, refresh_per_second=4, expand=True) as progress:
            yield Bar(progress)


def speed(rate: Rate, counters: Counters) -> list[str]:
    """Tokens per second and the time left, as far as they are known."""
    tokens, left = rate.tokens_per_second, rate.seconds_left(counters)
    parts = [f"{tokens:,.0f} tokens/s"] if tokens else []
    return [*parts, f"{timedelta(seconds=round(left))} left"] if left else parts
