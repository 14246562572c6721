"""How long ``minilab-client`` takes to start: ``python benchmarks/startup.py``.

Each command is a process of its own, and the commands take turns, so that a machine that slows down slows all of them.
An empty program beside them says what of it is Python; the ratio to that is what two machines can compare.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from service import private_redis

from minilab_gen.bench import json_option
from minilab_gen.measurement import Progress, table, write_json
from minilab_gen.protocol import embedded

_CLIENT: Final = (sys.executable, "-m", "minilab_client")
_COMPLETION: Final = {"_MINILAB_CLIENT_COMPLETE": "bash_complete"}


@dataclass(frozen=True, slots=True)
class Command:
    """One way to start a program."""

    name: str
    words: tuple[str, ...]
    variables: Mapping[str, str]
    bound_ms: int | None
    """What it should take on a quiet machine; None for what is there to compare with."""


COMMANDS: Final = (
    Command("python -c pass", (sys.executable, "-c", "pass"), {}, None),
    Command("--version", (*_CLIENT, "--version"), {}, 150),
    Command("--help", (*_CLIENT, "--help"), {}, 150),
    Command("submit --help", (*_CLIENT, "submit", "--help"), {}, 150),
    Command("sub<tab>", _CLIENT, {**_COMPLETION, "COMP_WORDS": "minilab-client sub", "COMP_CWORD": "1"}, 150),
    Command(
        "submit --te<tab>", _CLIENT, {**_COMPLETION, "COMP_WORDS": "minilab-client submit --te", "COMP_CWORD": "2"}, 150
    ),
    Command("submit TEXT", (*_CLIENT, "submit", "Phileas Fogg"), {}, 300),
    Command("jobs", (*_CLIENT, "jobs"), {}, None),
)


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took, in milliseconds."""

    clock: float
    processor: float


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of a command's starts."""

    command: str
    clock_ms: float
    processor_ms: float
    ratio: float
    """Its processor time by that of an empty program."""
    bound_ms: int | None

    def cells(self) -> list[str]:
        bound = "" if self.bound_ms is None else str(self.bound_ms)
        return [self.command, f"{self.clock_ms:.0f}", f"{self.processor_ms:.0f}", f"{self.ratio:.1f}", bound]


def start(command: Command, url: str) -> Start:
    """Run it to its end."""
    environment = {**os.environ, "MINILAB_REDIS_URL": url, **command.variables}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command.words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start(1000 * took, 1000 * processor)


def rows_of(starts: Mapping[str, list[Start]]) -> list[Row]:
    """A row for each command; the first one is what the others are compared with."""
    middle = {
        name: (statistics.median(one.clock for one in times), statistics.median(one.processor for one in times))
        for name, times in starts.items()
    }
    empty = middle[COMMANDS[0].name][1]
    return [
        Row(command.name, *middle[command.name], middle[command.name][1] / empty, command.bound_ms)
        for command in COMMANDS
    ]


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=15, show_default=True, help="Starts of each command.")
@json_option
def main(runs: int, json_file: Path | None) -> None:
    """Measure how long commands of minilab-client take from their start to their end.

    Example: python benchmarks/startup.py --runs 5
    """
    starts: dict[str, list[Start]] = {command.name: [] for command in COMMANDS}
    progress = Progress(runs)
    with private_redis():
        url = embedded.start().url
        for command in COMMANDS:  # compiled files are written, and everything is in the page cache
            start(command, url)
        for _ in range(runs):
            progress.say("each command once")
            for command in COMMANDS:
                starts[command.name].append(start(command, url))
    progress.clear()
    rows = rows_of(starts)
    click.echo(table(("command", "ms", "processor ms", "x python", "bound ms"), [row.cells() for row in rows]))
    click.echo(f"\nmedians of {runs}; bounds are for a quiet machine, load here {os.getloadavg()[0]:.1f}")
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    write_json(json_file, {"machine": machine, "runs": runs, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
