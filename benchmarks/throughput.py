"""Tokens per second: the reference loop with one job at a time, the engine alone, the whole service over Redis.

``python benchmarks/throughput.py``

All three run the same kind of jobs, in turn within each round, and what is said of one against another is the median
over the rounds: so a machine that slows down or speeds up meanwhile slows all three. A size is a number of jobs at
once: the engine and the worker have so many slots, and more jobs than that are waiting. The pace is that of the steady
part, while all slots are in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import redis
import service
from follower import Follower, follower
from latency import IdleLatency, measure_idle
from load import run_backlog, run_closed_loop

from minilab_gen.bench import (
    REFERENCE_JOBS,
    draw_requests,
    jobs_for,
    json_option,
    load_model,
    model_option,
    run_engine,
    run_reference,
    warm_up,
)
from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import SUMMARY_HEAD, Progress, RunResult, Summary, facts, ratio, table, write_json
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest

SIZES: Final = (1, 4, 16, 64, 128, 256)
_IDLE_TOKENS: Final = 32
_CLOSED_LOOP_SHARE: Final = 2
"""The closed loop runs one in so many of the backlog's jobs: times need fewer than a pace does."""


@dataclass(slots=True)
class Size:
    """The runs of one number of jobs at once, round by round."""

    at_once: int
    reference: list[RunResult] = field(default_factory=list)
    engine: list[RunResult] = field(default_factory=list)
    service: list[RunResult] = field(default_factory=list)

    def rows(self) -> list[tuple[str, int, Summary, float | None, float | None]]:
        """Variant, jobs at once, what it gave, how that compares with the loop, and with the engine."""
        to_engine, to_loop = ratio(self.service, self.engine), ratio(self.service, self.reference)
        return [
            ("engine", self.at_once, Summary.of(self.engine), ratio(self.engine, self.reference), None),
            ("service", self.at_once, Summary.of(self.service), to_loop, to_engine),
        ]


@dataclass(frozen=True, slots=True)
class Bench:
    """One execution of this program."""

    model: KernelModel
    folder: Path
    threads: int
    rounds: int
    connection: redis.Redis
    follower: Follower
    progress: Progress

    def measure(self, at_once: int) -> Size:
        """All variants at one size, in turn; every other round in the other order."""
        size = Size(at_once)
        warm_up(self.model, at_once)
        with service.worker(self.connection, self.folder, at_once, self.threads) as running:
            run_backlog(self.connection, running, self._short_requests(at_once), at_once)
            for number in range(self.rounds):
                variants = [self._run_reference, self._run_engine, self._run_service]
                for variant in variants if number % 2 == 0 else reversed(variants):
                    variant(size, running)
        return size

    def measure_idle(self, jobs: int) -> IdleLatency:
        """A worker's answer to one job, as it comes."""
        self.progress.say("one job at a time to an idle worker")
        short = draw_requests(jobs, self.model.config)
        requests = [GenerationRequest(request.prompt, _IDLE_TOKENS) for request in short]
        with service.worker(self.connection, self.folder, 64, self.threads):
            measure_idle(self.connection, requests[:2])  # the first jobs of a process find nothing laid out
            return measure_idle(self.connection, requests)

    def _run_reference(self, size: Size, running: service.WorkerProcess) -> None:
        self.progress.say(f"the reference loop, beside {size.at_once} jobs at once")
        requests = draw_requests(REFERENCE_JOBS, self.model.config)
        with running.standing_still():
            size.reference.append(run_reference(self.model, requests))

    def _run_engine(self, size: Size, running: service.WorkerProcess) -> None:
        self.progress.say(f"the engine, {size.at_once} jobs at once")
        requests = draw_requests(jobs_for(size.at_once), self.model.config)
        with running.standing_still():
            size.engine.append(run_engine(self.model, requests, size.at_once))

    def _run_service(self, size: Size, running: service.WorkerProcess) -> None:
        self.progress.say(f"the service, {size.at_once} jobs at once")
        requests = draw_requests(jobs_for(size.at_once), self.model.config)
        tokens, seconds = run_backlog(self.connection, running, requests, size.at_once)
        followed = requests[: len(requests) // _CLOSED_LOOP_SHARE]
        clock = run_closed_loop(self.connection, running, followed, size.at_once, self.follower)
        size.service.append(RunResult(tokens, seconds, clock, running.peak_bytes))

    def _short_requests(self, count: int) -> list[GenerationRequest]:
        return [GenerationRequest(request.prompt, 3) for request in draw_requests(count, self.model.config)]


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads to compute with.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, help="Times that everything is run, in turn.")
@click.option("--at-once", "at_once", type=click.IntRange(1, 1024), multiple=True, default=SIZES, help="Jobs at once.")
@click.option("--idle-jobs", type=click.IntRange(min=1), default=50, help="Jobs submitted to an idle worker.")
@json_option
def main(
    folder: Path, threads: int, rounds: int, at_once: tuple[int, ...], idle_jobs: int, json_file: Path | None
) -> None:
    """Measure tokens per second of the reference loop, the engine and the whole service, and what a job waits for.

    Example: python benchmarks/throughput.py --at-once 64 --rounds 3
    """
    model = load_model(folder, threads)
    progress = Progress(3 * rounds * len(at_once) + 1)
    try:
        with service.private_redis() as connection, follower() as reader:
            bench = Bench(model, folder, threads, rounds, connection, reader, progress)
            sizes = [bench.measure(count) for count in sorted(at_once)]
            idle = bench.measure_idle(idle_jobs)
            server = service.server_version(connection)
    except MiniLabError as error:
        raise click.ClickException(str(error)) from error
    progress.clear()
    reference = [pace for size in sizes for pace in size.reference]
    rows = [("reference loop", 1, Summary.of(reference), None, None), *(row for size in sizes for row in size.rows())]
    rows.sort(key=lambda row: ("reference loop", "engine", "service").index(row[0]))
    _show(rows, idle)
    click.echo(f"Times are p50 / p99. {threads} threads, {server}, {rounds} rounds, greedy, steady state.")
    content = {"benchmark": "throughput", "threads": threads, "rounds": rounds, "redis": server}
    write_json(json_file, content | facts(folder, model) | _to_json(rows, idle))


def _show(rows: list[tuple[str, int, Summary, float | None, float | None]], idle: IdleLatency) -> None:
    head = ["", "jobs at once", *SUMMARY_HEAD, "of the loop", "of the engine"]
    cells = [
        [name, str(at_once), *summary.cells(), _times(to_loop, 1), _times(to_engine, 2)]
        for name, at_once, summary, to_loop, to_engine in rows
    ]
    click.echo(table(head, cells))
    click.echo(f"An idle worker: first token {idle.first_token} ms after submit returns;", nl=False)
    click.echo(f" a tail in another process prints a token {idle.printed} ms after its XADD.")


def _times(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _to_json(rows: list[tuple[str, int, Summary, float | None, float | None]], idle: IdleLatency) -> dict[str, Any]:
    return {
        "runs": [
            {"variant": name, "jobs_at_once": at_once, "times_reference": to_loop, "times_engine": to_engine}
            | summary.to_json()
            for name, at_once, summary, to_loop, to_engine in rows
        ],
        "idle": {"first_token_ms": idle.first_token.to_json(), "printed_ms": idle.printed.to_json()},
    }


if __name__ == "__main__":
    main()
