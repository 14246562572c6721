"""Where a step's time goes: in the engine alone, and in a worker that serves from a real Redis.

``python benchmarks/overhead.py``

The worker runs in this process, so that its parts can be timed. The parts of a step are the engine's phases, in clock
time; of reading and choosing, what the kernels take is apart from what is around their one call. The waits of the
engine's thread for the interpreter's lock are included. What RQ's records and the tokens take is processor time of the
threads that write them, since these mostly wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Final

import click
import redis
from minilab_worker.engine_loop import EngineLoop
from minilab_worker.publisher import Publisher
from minilab_worker.rq import RqJobStore
from minilab_worker.serving import ServedModel, load_served_model
from minilab_worker.takeover import Takeover
from minilab_worker.worker import Worker, WorkerSettings
from service import private_redis, server_version
from stopwatch import Stopwatch, Watched

from minilab_gen.bench import draw_requests, jobs_for, json_option, model_option, run_engine, warm_up
from minilab_gen.engine import Engine, Phase
from minilab_gen.errors import MiniLabError
from minilab_gen.kernels.library import library
from minilab_gen.measurement import Progress, facts, table, write_json
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.protocol import keys
from minilab_gen.protocol.submission import Submission, enqueue

SIZES: Final = (1, 16, 64)

_STEP, _LOOP, _KERNELS = "step", "loop", "kernels"

_READING: Final[tuple[Phase, Phase]] = ("prefill", "decode")

_LOOP_PARTS: Final = (
    Watched(EngineLoop, "_take", "text of the tokens"),
    Watched(Publisher, "send", "publishing: pack and send"),
    Watched(Publisher, "collect", "publishing: read answers"),
    Watched(EngineLoop, "_release_published", "letting ended jobs go"),
)
"""Within the loop of the engine's thread, beside the step; none lies within another."""

_BOOKS: Final = (
    Watched(RqJobStore, "claim", "RQ: claim and start"),
    Watched(RqJobStore, "finish", "RQ: record the end"),
    Watched(Worker, "_begin", "from request to sequence"),
    Watched(RqJobStore, "renew", "heartbeats"),
    Watched(Takeover, "sweep_if_due", "looking for expired leases"),
)
"""In other threads than the engine's."""

_TOKENS: Final = (
    Watched(EngineLoop, "_take", "text"),
    Watched(Publisher, "send", "pack and send"),
    Watched(Publisher, "collect", "read answers"),
)
"""What each token takes of the engine's thread beside the engine."""

_PUBLISHING: Final = ("xadd", "mget")
"""The commands that carry tokens and ask for cancel flags; the others are RQ's, and two expiries for each stream."""


class PhaseClock:
    """Seconds of the engine's phases, but for the plan, which is what they leave of a step."""

    def __init__(self, watch: Stopwatch) -> None:
        """``watch`` is at the kernels' call."""
        self._watch = watch
        self._last = self._kernels = 0.0
        self.phases: defaultdict[Phase, float] = defaultdict(float)
        self.kernels: defaultdict[Phase, float] = defaultdict(float)
        """What the kernels take of them."""

    def end(self, phase: Phase) -> None:
        now, kernels = perf_counter(), self._watch.seconds[_KERNELS]
        if phase != "plan":
            self.phases[phase] += now - self._last
            self.kernels[phase] += kernels - self._kernels
        self._last, self._kernels = now, kernels

    def parts(self, steps: int, whole: float) -> dict[str, float]:
        """Milliseconds of a step; they add up to the whole."""
        prefill, decode = (1000 * self.kernels[phase] / steps for phase in _READING)
        reading = 1000 * sum(self.phases[phase] for phase in _READING) / steps
        settling = 1000 * self.phases["settle"] / steps
        return {
            "plan": whole - reading - settling,
            "prefill: the kernels": prefill,
            "decode: the kernels": decode,
            "prefill and decode: around them": reading - prefill - decode,
            "settle": settling,
        }


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Milliseconds of a step, part by part; they add up to the whole."""

    at_once: int
    steps: int
    whole: float
    parts: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "jobs_at_once": self.at_once,
            "steps": self.steps,
            "ms_per_step": round(self.whole, 4),
            "parts_ms": {part: round(ms, 4) for part, ms in self.parts.items()},
            "parts_share": {part: round(ms / self.whole, 4) for part, ms in self.parts.items()},
        }


@dataclass(frozen=True, slots=True)
class JobCost:
    """What RQ's bookkeeping and the streams take for each job."""

    processor_ms: dict[str, float]
    token_us: dict[str, float]
    """Processor time of the engine's thread for each token, beside the engine."""
    commands: dict[str, float]
    """How many of each kind Redis was sent."""
    redis_ms: float
    """Processor time of Redis."""

    @property
    def claim_and_end_ms(self) -> float:
        """Processor time of what RQ wants to know of a job, without its heartbeats."""
        return sum(ms for part, ms in self.processor_ms.items() if part.startswith("RQ: "))

    @property
    def other_commands(self) -> float:
        """Those that do not carry tokens."""
        return sum(count for name, count in self.commands.items() if name not in _PUBLISHING)

    def to_json(self) -> dict[str, Any]:
        return {
            "processor_ms_per_job": {part: round(ms, 4) for part, ms in self.processor_ms.items()},
            "processor_us_per_token": {part: round(us, 3) for part, us in self.token_us.items()},
            "redis_commands_per_job": {name: round(count, 2) for name, count in self.commands.items()},
            "redis_processor_ms_per_job": round(self.redis_ms, 4),
        }


def break_down_engine(model: KernelModel, at_once: int) -> Breakdown:
    """The engine alone, in the closed loop of ``throughput.py``."""
    requests = draw_requests(jobs_for(at_once), model.config)
    warm_up(model, at_once)
    with Stopwatch([Watched(Engine, "step", _STEP), Watched(library(), "mlk_run", _KERNELS)]) as watch:
        clock = PhaseClock(watch)
        run_engine(model, requests, at_once, clock.end)
    steps = watch.calls[_STEP]
    whole = 1000 * watch.seconds[_STEP] / steps
    return Breakdown(at_once, steps, whole, clock.parts(steps, whole))


def break_down_service(served: ServedModel, at_once: int, connection: redis.Redis) -> tuple[Breakdown, JobCost]:
    """A whole worker, with jobs that wait for it in the queue. It leaves when none is left."""
    requests = draw_requests(jobs_for(at_once), served.model.config)
    for request in requests:
        enqueue(connection, request, Submission())
    queues = tuple(keys.queue_names(keys.DEFAULT_MODEL))
    worker = Worker(WorkerSettings(queues, at_once, burst=True), served)
    step_watch = Stopwatch([Watched(Engine, "step", _STEP)])
    loop_watch = Stopwatch([*_LOOP_PARTS, Watched(EngineLoop, "_step", _LOOP)])
    books_watch, token_watch = Stopwatch(_BOOKS, thread_time), Stopwatch(_TOKENS, thread_time)
    commands, seconds = _commands(connection), _redis_seconds(connection)
    with token_watch, step_watch, loop_watch, books_watch:
        worker.serve()
    if worker.done != len(requests):
        raise click.ClickException(f"the worker must end {len(requests)} jobs, it ended {worker.done}")
    jobs = len(requests)
    more = {name: (count - commands.get(name, 0)) / jobs for name, count in _commands(connection).items()}
    costs = JobCost(
        _ms(books_watch, _BOOKS, jobs),
        {part: 1000 * ms for part, ms in _ms(token_watch, _TOKENS, worker.counters.tokens).items()},
        {name: count for name, count in sorted(more.items(), key=lambda item: -item[1]) if count},
        1000 * (_redis_seconds(connection) - seconds) / jobs,
    )
    return _of_the_loop(at_once, step_watch, loop_watch), costs


def _of_the_loop(at_once: int, step_watch: Stopwatch, loop_watch: Stopwatch) -> Breakdown:
    steps = step_watch.calls[_STEP]
    first, last = loop_watch.spans[_LOOP]
    whole, in_loop = 1000 * (last - first) / steps, 1000 * loop_watch.seconds[_LOOP] / steps
    parts = {"engine: the step": 1000 * step_watch.seconds[_STEP] / steps} | _ms(loop_watch, _LOOP_PARTS, steps)
    parts["rest of the loop"] = in_loop - sum(parts.values())
    parts["between: taking in, waiting"] = whole - in_loop
    return Breakdown(at_once, steps, whole, parts)


def _ms(watch: Stopwatch, watched: Iterable[Watched], count: int) -> dict[str, float]:
    """Milliseconds of each part, divided by a count."""
    return {one.part: 1000 * watch.seconds[one.part] / count for one in watched}


def _commands(connection: redis.Redis) -> dict[str, int]:
    """How often Redis has run each command, this one left out."""
    found: dict[str, Any] = connection.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(counts["calls"]) for name, counts in found.items()}
    return {name: count for name, count in calls.items() if name != "info"}


def _redis_seconds(connection: redis.Redis) -> float:
    """Processor time that Redis has used."""
    used: dict[str, Any] = connection.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads to compute with.")
@click.option("--at-once", type=click.IntRange(1, 1024), multiple=True, default=SIZES, help="Jobs at a time.")
@json_option
def main(folder: Path, threads: int, at_once: tuple[int, ...], json_file: Path | None) -> None:
    """Break down the time of a step, and what serving a job takes beside the steps.

    Example: python benchmarks/overhead.py --at-once 64
    """
    progress = Progress(1 + 2 * len(at_once))
    engine: list[Breakdown] = []
    service: list[tuple[Breakdown, JobCost]] = []
    try:
        progress.say("loading the model")
        served = load_served_model(folder, keys.DEFAULT_MODEL, max(at_once), threads)
        with private_redis() as connection:
            for size in sorted(at_once):
                progress.say(f"the engine, {size} jobs at once")
                engine.append(break_down_engine(served.model, size))
                progress.say(f"the service, {size} jobs at once")
                service.append(break_down_service(served, size, connection))
            server = server_version(connection)
    except MiniLabError as error:
        raise click.ClickException(str(error)) from error
    progress.clear()
    _show(engine, service)
    click.echo(f"{threads} threads, {server}. Python and Redis: processor time; all else: time on the clock.")
    content = {
        "benchmark": "overhead",
        "threads": threads,
        "redis": server,
        "engine": [breakdown.to_json() for breakdown in engine],
        "service": [breakdown.to_json() | costs.to_json() for breakdown, costs in service],
    }
    write_json(json_file, content | facts(folder, served.model))


def _show(engine: Sequence[Breakdown], service: Sequence[tuple[Breakdown, JobCost]]) -> None:
    head = [""]
    for breakdown in engine:
        head += [f"{breakdown.at_once} at once", "share"]
    steps, costs = [breakdown for breakdown, _ in service], [costs for _, costs in service]
    rows = _rows("engine alone: ms a step", engine) + _rows("whole service: ms a step", steps)
    rows.append(_row("each job beside the steps", [""] * len(costs)))
    for part in costs[0].processor_ms:
        rows.append(_row(f"  {part}, Python ms", [f"{one.processor_ms[part]:.3f}" for one in costs]))
    rows.append(_row("  claim and end together, Python ms", [f"{one.claim_and_end_ms:.3f}" for one in costs]))
    rows.append(_row("  Redis ms", [f"{one.redis_ms:.3f}" for one in costs]))
    rows.append(_row("  Redis commands", [f"{sum(one.commands.values()):.1f}" for one in costs]))
    rows.append(_row(f"  without {', '.join(_PUBLISHING)}", [f"{one.other_commands:.1f}" for one in costs]))
    rows.append(_row("each token beside the engine, Python us", [f"{sum(one.token_us.values()):.2f}" for one in costs]))
    for part in costs[0].token_us:
        rows.append(_row(f"  {part}", [f"{one.token_us[part]:.2f}" for one in costs]))
    click.echo(table(head, rows))


def _rows(title: str, breakdowns: Sequence[Breakdown]) -> list[list[str]]:
    rows = [_row(title, [f"{one.whole:.3f}" for one in breakdowns])]
    for part in breakdowns[0].parts:
        row = [f"  {part}"]
        for one in breakdowns:
            row += [f"{one.parts[part]:.3f}", f"{100 * one.parts[part] / one.whole:.1f}%"]
        rows.append(row)
    return rows


def _row(title: str, cells: Sequence[str]) -> list[str]:
    """A line without shares."""
    return [title, *(cell for value in cells for cell in (value, ""))]


if __name__ == "__main__":
    main()
