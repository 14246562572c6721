"""What a long prompt does to jobs in mid-answer: their gaps between tokens, read in chunks and in one piece.

``python benchmarks/long_prompt.py --model DIR``

In each round the same jobs decode, a long prompt arrives after some steps, and the round ends with its first token; the
rounds take the ways of reading it in turn.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from minilab_gen.bench import json_option, load_model, model_option
from minilab_gen.engine import Chosen, Engine, Sequence
from minilab_gen.measurement import Percentiles, Progress, facts, table, write_json
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest

_SEED: Final = 6
_SHORT_PROMPT: Final = 32
_STEPS_BEFORE: Final = 10
"""Decode steps before the long prompt comes, which show what a gap is without it."""
_NAME: Final = "long"


@dataclass(slots=True)
class Way:
    """A way of reading the prompt, and what it cost."""

    name: str
    prefill_tokens: int | None
    quiet: list[float] = field(default_factory=list)
    """Seconds between two tokens of one answer before the prompt came."""
    gaps: list[float] = field(default_factory=list)
    """The same while it was read."""
    first_token: list[float] = field(default_factory=list)
    """Seconds until the long prompt's own first token."""

    def cells(self) -> list[str]:
        quiet, gaps = Percentiles.of(self.quiet), Percentiles.of(self.gaps)
        shown = [f"{value:.1f}" for value in (quiet.p50, gaps.p50, gaps.p99, Percentiles.of(self.first_token).p50)]
        return [self.name, *shown]

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "prefill_tokens": self.prefill_tokens,
            "quiet_gap_ms": Percentiles.of(self.quiet).to_json(),
            "gap_ms": Percentiles.of(self.gaps).to_json(),
            "first_token_ms": Percentiles.of(self.first_token).to_json(),
        }


def run_round(model: KernelModel, way: Way, jobs: int, prompt_tokens: int, *, counts: bool) -> None:
    """Let ``jobs`` decode, then bring the prompt, until its first token."""
    dice = random.Random(_SEED)
    engine = Engine(model, jobs + 1, prefill_tokens=way.prefill_tokens)
    vocabulary = model.config.vocab_size
    for number in range(jobs):
        prompt = tuple(dice.randrange(vocabulary) for _ in range(_SHORT_PROMPT))
        engine.add(Sequence(str(number), GenerationRequest(prompt, max_new_tokens=10_000)))
    while not _all_answer(engine.step(), jobs):
        pass
    quiet = _gaps(engine, _STEPS_BEFORE)
    prompt = tuple(dice.randrange(vocabulary) for _ in range(prompt_tokens))
    engine.add(Sequence(_NAME, GenerationRequest(prompt, max_new_tokens=1)))
    start = time.perf_counter()
    gaps = _gaps(engine, None)
    if counts:
        way.quiet += quiet
        way.gaps += [gap for gap in gaps for _ in range(jobs)]
        way.first_token.append(time.perf_counter() - start)


def _all_answer(outcomes: list[Any], jobs: int) -> bool:
    return sum(isinstance(outcome, Chosen) for outcome in outcomes) == jobs


def _gaps(engine: Engine, steps: int | None) -> list[float]:
    """Seconds of each step, the gaps of all jobs that decode; ``None`` steps until the long prompt is answered."""
    gaps: list[float] = []
    while steps is None or len(gaps) < steps:
        start = time.perf_counter()
        outcomes = engine.step()
        gaps.append(time.perf_counter() - start)
        if any(outcome.sequence.name == _NAME for outcome in outcomes):
            break
    return gaps


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--jobs", type=click.IntRange(1, 1024), default=15, help="Jobs that decode.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=2000, help="Tokens of the prompt that arrives.")
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads to compute with.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Times that each way is tried, in turn.")
@json_option
def main(folder: Path, jobs: int, prompt_tokens: int, threads: int, rounds: int, json_file: Path | None) -> None:
    """Measure the gap between tokens of running jobs while a long prompt is read.

    Example: python benchmarks/long_prompt.py --model DIR --jobs 15 --prompt-tokens 2000
    """
    model = load_model(folder, threads)
    if prompt_tokens >= model.config.context_length:
        raise click.UsageError(f"the prompt must fit the context of {model.config.context_length}, got {prompt_tokens}")
    ways = [Way("in chunks", None), Way("in one piece", prompt_tokens)]
    progress = Progress((rounds + 1) * len(ways))
    for number in range(rounds + 1):
        for way in ways if number % 2 else reversed(ways):
            progress.say(f"{way.name}: round {number}" if number else f"{way.name}: warm up")
            run_round(model, way, jobs, prompt_tokens, counts=number > 0)
    progress.clear()
    head = ("prompt read", "gap without it, ms", "gap p50, ms", "gap p99, ms", "its first token, ms")
    click.echo(table(head, [way.cells() for way in ways]))
    click.echo(
        f"{jobs} jobs decode while a prompt of {prompt_tokens} tokens is read; {threads} threads, {rounds} rounds."
    )
    content = {"benchmark": "long_prompt", "jobs": jobs, "prompt_tokens": prompt_tokens, "threads": threads}
    write_json(json_file, content | {"ways": [way.to_json() for way in ways]} | facts(folder, model))


if __name__ == "__main__":
    main()
