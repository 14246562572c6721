"""A batch of 10 000 lines whose client is killed twice: ``python benchmarks/batch.py``.

Every good line must have its answer once, with the very tokens of the reference
loop, every bad line its reason once, and no job may have run twice. Meanwhile the worker's slots are counted.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import redis
from batch_client import HEAD, ClientRun, Files, Slots, run_client
from batch_verdict import count_wrong_answers, count_wrong_errors, read_output
from batch_workload import BadLine, GoodLine, bad_lines, good_lines
from rq import Worker
from service import private_redis, worker

from minilab_gen.bench import json_option, model_option
from minilab_gen.measurement import Progress, facts, table, write_json
from minilab_gen.models.checkpoint import load
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import read_card
from minilab_gen.text.tokenizer import get_tokenizer

KILL_AT: Final = (0.3, 0.65)
"""Shares of the good lines that are answered when the client is killed."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came out, counted."""

    good: int
    bad: int
    wrong_answers: int
    """Good lines without their one right answer."""
    strays: int
    """Custom ids in the output that no good line has."""
    wrong_errors: int
    jobs_run: int
    """By RQ's registries; one for each good line is right."""
    tokens: int
    seconds: float
    """Of all runs of the client."""

    @property
    def is_right(self) -> bool:
        return not (self.wrong_answers or self.strays or self.wrong_errors) and self.jobs_run == self.good

    def __str__(self) -> str:
        return (
            f"{self.good:,} good lines, {self.wrong_answers:,} without exactly one answer, the reference loop's; "
            f"{self.strays:,} answers to no line\n"
            f"{self.bad:,} bad lines, {self.wrong_errors:,} without exactly one reason\n"
            f"{self.jobs_run:,} jobs were run\n"
            f"{self.tokens:,} tokens in {self.seconds:.1f} s, {self.tokens / self.seconds:,.0f} a second"
        )


def write_input(file: Path, good: Sequence[GoodLine], bad: Sequence[BadLine]) -> dict[int, BadLine]:
    """Write all lines, the bad ones spread among the good ones behind the first; the bad ones by number."""
    lines: list[GoodLine | BadLine] = list(good)
    dice = random.Random(7)
    for line in bad:
        lines.insert(dice.randint(1, len(lines)), line)
    file.write_bytes(b"".join(line.content + b"\n" for line in lines))
    return {number: line for number, line in enumerate(lines, start=1) if isinstance(line, BadLine)}


def count_jobs_run(connection: redis.Redis) -> int:
    """Jobs that workers have run to a good end."""
    return sum(found.successful_job_count for found in Worker.all(connection=connection))


class Trial:
    """A batch from its first line to its verdict."""

    def __init__(self, folder: Path, lines: int, distinct: int, max_batch: int, threads: int | None) -> None:
        self._folder, self._lines, self._distinct = folder, lines, distinct
        self._max_batch, self._threads = max_batch, threads
        self._progress = Progress(len(KILL_AT) + 3)
        self.runs: list[ClientRun] = []

    def run(self, files: Files) -> BatchResult:
        """Let the client work, kill it, let it go on; then judge what it wrote."""
        self._progress.say("a worker starts")
        with private_redis() as connection, worker(connection, self._folder, self._max_batch, self._threads) as running:
            bad = bad_lines(taken="line-0")
            stop_ids = read_card(connection, keys.DEFAULT_MODEL).stop_ids
            good = good_lines(self._lines - len(bad), self._distinct, stop_ids, get_tokenizer(self._folder))
            numbered = write_input(files.lines, good, bad)
            for share in (*KILL_AT, None):
                self._progress.say("the client goes on" if share is None else f"the client is killed at {share:.0%}")
                kill_at = None if share is None else round(share * len(good))
                self.runs.append(run_client(files, Slots(connection), running, kill_at))
            jobs_run = count_jobs_run(connection)
        self._progress.say("the reference answers")
        given = read_output(files.output)
        wrong = count_wrong_answers(self._folder, good, given, self._progress.say_again)
        self._progress.clear()
        return BatchResult(
            good=len(good),
            bad=len(bad),
            wrong_answers=wrong,
            strays=len(given.keys() - {line.custom_id for line in good}),
            wrong_errors=count_wrong_errors(files.errors, numbered),
            jobs_run=jobs_run,
            tokens=sum(len(found.ids) for several in given.values() for found in several),
            seconds=sum(run.seconds for run in self.runs),
        )


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--lines", type=click.IntRange(min=100), default=10_000, help="Lines of the file, bad ones among them.")
@click.option("--distinct", type=click.IntRange(min=1), default=1_000, help="Requests that differ and name a seed.")
@click.option("--max-batch", type=click.IntRange(1, 1024), default=64, help="Slots of the worker.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the worker.  [default: one a core]")
@json_option
def main(folder: Path, lines: int, distinct: int, max_batch: int, threads: int | None, json_file: Path | None) -> None:
    """Answer a file on a Redis and a worker of the program's own, and kill the client twice on the way.

    Example: python benchmarks/batch.py --lines 1000
    """
    trial = Trial(folder, lines, distinct, max_batch, threads)
    with tempfile.TemporaryDirectory(prefix="minilab-batch-") as name:
        verdict = trial.run(Files(Path(name, "in.jsonl"), Path(name, "out.jsonl"), Path(name, "errors.jsonl")))
    rows = [run.cells(max_batch) for run in trial.runs]
    click.echo(table(HEAD, rows))
    click.echo(f"\n{verdict}")
    runs = [dict(zip(HEAD, row, strict=True)) for row in rows]
    content: dict[str, Any] = {**facts(folder, load(folder)), "runs": runs, "verdict": asdict(verdict)}
    write_json(json_file, content)
    sys.exit(not verdict.is_right)


if __name__ == "__main__":
    main()
