"""How far a batch is, on stderr: a bar on a terminal, a line now and then elsewhere, nothing with --quiet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

from minilab_client.batch.tally import Counters, Rate

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
