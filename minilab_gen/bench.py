"""How fast this machine answers, the engine with many jobs against the plain loop: ``python -m minilab_gen.bench``.

It must not know Redis: it measures what a worker computes. What it costs to serve that is measured by the programs in
``benchmarks/``, which run what is here.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from minilab_gen.engine import Chosen, Engine, Sequence
from minilab_gen.engine.engine import OnPhase
from minilab_gen.errors import MiniLabError
from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import WEIGHT_TYPES, WeightType
from minilab_gen.measurement import (
    SUMMARY_HEAD,
    Progress,
    RunResult,
    Summary,
    TokenClock,
    facts,
    peak_memory,
    ratio,
    reset_peak_memory,
    table,
    write_json,
)
from minilab_gen.models.checkpoint import load
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

PROMPT_TOKENS: Final = (2, 32)
NEW_TOKENS: Final = (32, 96)
"""Shortest and longest: together they fill the base model's context of 128. Shorter contexts get their share."""

JOBS_PER_PLACE: Final = 4
FEWEST_JOBS: Final = 16
"""Jobs of one run: four for each that runs at a time, so that most of it is steady, but enough to time a few alone."""

REFERENCE_JOBS: Final = 8
"""Jobs of one run of the reference loop: half a second of one job at a time."""

SIZES: Final = (1, 4, 16, 64)

_SEED: Final = 20_261_129

model_option = click.option(
    "--model", "folder", type=click.Path(path_type=Path), default=BASE_CHECKPOINT, help="Checkpoint folder."
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(WEIGHT_TYPES),
    default="float32",
    help="Data type of the weights; int8 is made at load.",
)
json_option = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers there, too."
)


def load_model(folder: Path, threads: int | None = None, dtype: WeightType = "float32") -> KernelModel:
    """The model of a checkpoint folder. Errors are click's."""
    try:
        return load(folder, dtype, threads=threads)
    except MiniLabError as error:
        raise click.ClickException(str(error)) from error


def draw_requests(count: int, config: ModelConfig) -> list[GenerationRequest]:
    """Greedy requests of random prompts and lengths, the same in every run; each answer has its full length."""
    dice = random.Random(_SEED)
    share = min(1.0, config.context_length / (PROMPT_TOKENS[1] + NEW_TOKENS[1]))
    prompt, new = ([max(1, int(length * share)) for length in lengths] for lengths in (PROMPT_TOKENS, NEW_TOKENS))
    return [
        GenerationRequest(
            tuple(dice.randrange(config.vocab_size) for _ in range(dice.randint(*prompt))), dice.randint(*new)
        )
        for _ in range(count)
    ]


def jobs_for(at_once: int) -> int:
    """How many jobs a run of ``at_once`` at a time needs."""
    return max(JOBS_PER_PLACE * at_once, FEWEST_JOBS)


def run_reference(model: KernelModel, requests: Iterable[GenerationRequest]) -> RunResult:
    """The plain loop, one job after the other."""
    clock = TokenClock()
    reset_peak_memory()
    start = time.perf_counter()
    for number, request in enumerate(requests):
        clock.ask(str(number), time.perf_counter())
        for _ in generate(model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids):
            clock.take(str(number), time.perf_counter())
    return RunResult(clock.tokens, time.perf_counter() - start, clock, peak_memory())


def run_engine(
    model: KernelModel, requests: Iterable[GenerationRequest], at_once: int, on_phase: OnPhase | None = None
) -> RunResult:
    """The engine in a closed loop: ``at_once`` jobs at any time, the next one added when one has ended.

    The pace is that of the steady part: from when all slots are in use to when the last job is added. ``on_phase`` is
    the engine's.
    """
    engine, clock = Engine(model, at_once, on_phase=on_phase), TokenClock()
    to_come = deque(Sequence(str(number), request) for number, request in enumerate(requests))
    marks: list[tuple[float, int]] = []  # time and tokens so far, step by step
    reset_peak_memory()
    start = time.perf_counter()
    while to_come or engine.has_work:
        while to_come and engine.running + engine.waiting < at_once:
            clock.ask(to_come[0].name, time.perf_counter())
            engine.add(to_come.popleft())
        outcomes = engine.step()
        now = time.perf_counter()
        for outcome in outcomes:
            if isinstance(outcome, Chosen):
                clock.take(outcome.sequence.name, now)
        if to_come and (marks or not engine.waiting):
            marks.append((now, clock.tokens))
    steady = marks if len(marks) > 1 else [(start, 0), (time.perf_counter(), clock.tokens)]
    (begin, before), (end, after) = steady[0], steady[-1]
    return RunResult(after - before, end - begin, clock, peak_memory())


def warm_up(model: KernelModel, at_once: int) -> None:
    """Touch the memory that a run of this size needs."""
    short = [GenerationRequest(request.prompt, 3) for request in draw_requests(at_once, model.config)]
    run_engine(model, short, at_once)
    run_reference(model, short[:1])


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--threads", type=click.IntRange(min=1), help="Threads to compute with.  [default: one a core]")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Times that everything is run, in turn.")
@click.option("--at-once", "sizes", type=click.IntRange(min=1), multiple=True, default=SIZES, help="Jobs at a time.")
@json_option
def main(folder: Path, threads: int | None, rounds: int, sizes: tuple[int, ...], json_file: Path | None) -> None:
    """Measure how fast this machine computes a model's answers, many jobs at a time against one.

    Example: python -m minilab_gen.bench --at-once 64
    """
    model = load_model(folder, threads)
    progress = Progress(rounds * (1 + len(sizes)))
    reference: list[RunResult] = []
    engine: dict[int, list[RunResult]] = {at_once: [] for at_once in sorted(sizes)}
    warm_up(model, 1)
    for _ in range(rounds):
        progress.say("the reference loop")
        reference.append(run_reference(model, draw_requests(REFERENCE_JOBS, model.config)))
        for at_once, runs in engine.items():
            progress.say(f"the engine, {at_once} jobs at once")
            warm_up(model, at_once)
            runs.append(run_engine(model, draw_requests(jobs_for(at_once), model.config), at_once))
    progress.clear()
    rows = [("reference loop", 1, Summary.of(reference), 1.0)]
    rows += [("engine", at_once, Summary.of(runs), ratio(runs, reference)) for at_once, runs in engine.items()]
    cells = [[name, str(at_once), *summary.cells(), f"{times:.1f}"] for name, at_once, summary, times in rows]
    click.echo(table(["", "jobs at once", *SUMMARY_HEAD, "times the loop"], cells))
    click.echo(f"Times are p50 / p99. {model.threads} threads, {rounds} rounds, greedy, steady state.")
    runs_json = [
        {"variant": name, "jobs_at_once": at_once, "times_reference": times} | summary.to_json()
        for name, at_once, summary, times in rows
    ]
    content = {"benchmark": "bench", "threads": model.threads, "rounds": rounds, "runs": runs_json}
    write_json(json_file, content | facts(folder, model))


if __name__ == "__main__":
    main()
