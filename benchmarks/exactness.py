"""Whether the engine gives every job the very tokens, and logits, that the reference loop gives it alone.

``python benchmarks/exactness.py``

Thousands of random jobs arrive in bursts between the engine's steps, some are cancelled, some were half answered by
an earlier worker. Every list of tokens must equal what ``generate`` gives for the same request, a cancelled job's must
be the beginning of it, and on a sample of the jobs the logits of every step must be equal bit for bit. The reference
can compute with another back end of the kernels, as another processor would: ``--reference-kernels plain``.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import torch
from torch import Tensor
from workload import Answer, RandomJob, Reference, answer_all, draw_jobs

from minilab_gen.bench import dtype_option, json_option, load_model, model_option
from minilab_gen.engine import Ended, Engine, Outcome
from minilab_gen.engine import Sequence as Running
from minilab_gen.kernels.decoder import WeightType
from minilab_gen.kernels.library import backend, backends
from minilab_gen.measurement import Progress, facts, table, write_json
from minilab_gen.models.kernel_model import KernelModel

_BLOCK: Final = 500
"""Jobs of one engine; then the engine is checked to be idle, and the next reads prompts in other chunks."""

_PREFILL_TOKENS: Final = (256, 16, 48, 1)
"""Prompt tokens of one step, block by block: the worker's own, and fewer, which cut prompts at other tokens."""

_CONTEXTS: Final = (None, 3)
"""Whole contexts whose keys and values are held at a time: in every other block so few that jobs are sent back."""

_BURSTS: Final = (0, 0, 0, 1, 1, 5)
"""Jobs that arrive before a step, times as many as end in one when all slots are in use: idle times and queues."""

_TOKENS_OF_A_JOB: Final = 10
"""About; the bursts are made from it."""

_SHOWN: Final = 10
"""Mismatches that are described."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    folder: Path
    dtype: WeightType
    jobs: int
    sample_every: int
    threads: tuple[int, ...]
    max_batch: tuple[int, ...]
    seed: int
    reference_kernels: str | None
    json_file: Path | None

    @property
    def reference(self) -> Reference:
        return Reference(self.folder, self.dtype, self.reference_kernels)


@dataclass(frozen=True, slots=True)
class Case:
    """A job, what the reference answers to it, and where its answer begins here."""

    job: RandomJob
    answer: Answer

    @property
    def answered(self) -> tuple[int, ...]:
        """The tokens that an earlier worker has published."""
        return self.answer.tokens[: int(self.job.answered * (len(self.answer.tokens) + 1))]


@dataclass(slots=True)
class EngineResult:
    """What the runs of one engine setting gave."""

    threads: int
    max_batch: int
    jobs: int = 0
    tokens: int = 0
    rows: int = 0
    """Rows of logits compared."""
    cancelled: int = 0
    """Jobs that were still at work when they were cancelled."""
    resumed: int = 0
    """Jobs that began with tokens of an earlier run."""
    wrong_jobs: int = 0
    wrong_rows: int = 0
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def complain(self, text: str) -> None:
        """A job went wrong."""
        self.wrong_jobs += 1
        self.complaints.append(f"{self.threads} threads, max batch {self.max_batch}: {text}")

    def cells(self) -> list[str]:
        counts = (self.jobs, self.resumed, self.cancelled, self.tokens, self.rows, self.wrong_jobs, self.wrong_rows)
        return [str(self.threads), str(self.max_batch), *(f"{count:,}" for count in counts), f"{self.seconds:.0f}"]


HEAD: Final = (
    *("threads", "max batch", "jobs", "resumed", "cancelled", "tokens", "rows of logits"),
    *("wrong jobs", "wrong rows", "seconds"),
)


class Trial:
    """One engine from its first job to its last."""

    def __init__(
        self,
        model: KernelModel,
        cases: Sequence[Case],
        result: EngineResult,
        prefill_tokens: int,
        kv_tokens: int | None,
        dice: random.Random,
    ) -> None:
        self._engine = Engine(
            model,
            result.max_batch,
            threads=result.threads,
            kv_tokens=kv_tokens,
            prefill_tokens=prefill_tokens,
            on_logits=self._compare_logits,
        )
        self._cases = {case.job.name: case for case in cases}
        self._to_come = deque(cases)
        self._to_cancel: dict[int, list[str]] = {}  # step: names
        self._tokens: dict[str, list[int]] = {}
        self._misnumbered: set[str] = set()
        self._ends: dict[str, Ended] = {}
        self._result, self._dice = result, dice
        self._step, self._due = 0, 0.0

    def run(self) -> None:
        """Let the jobs arrive and leave, then judge each of them."""
        while self._to_come or self._engine.has_work:
            self._let_arrive()
            for name in self._to_cancel.pop(self._step, ()):
                self._engine.end(name, "cancelled")
            self._take(self._engine.step())
            self._step += 1
        self._engine.check_idle()
        for case in self._cases.values():
            self._judge(case)

    def _let_arrive(self) -> None:
        self._due += self._result.max_batch / _TOKENS_OF_A_JOB * self._dice.choice(_BURSTS)
        while self._due >= 1 and self._to_come:
            self._due -= 1
            case = self._to_come.popleft()
            name = case.job.name
            self._tokens[name] = list(case.answered)
            self._engine.add(Running(name, case.job.request, case.answered))
            if case.job.cancelled_after is not None:
                self._to_cancel.setdefault(self._step + case.job.cancelled_after, []).append(name)

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            name = outcome.sequence.name
            if isinstance(outcome, Ended):
                self._ends[name] = outcome
                continue
            self._tokens[name].append(outcome.token_id)
            if outcome.number != len(self._tokens[name]):
                self._misnumbered.add(name)

    def _compare_logits(self, sequence: Running, row: Tensor) -> None:
        logits = self._cases[sequence.name].answer.logits
        if logits is None:
            return
        self._result.rows += 1
        if sequence.tokens >= len(logits) or not torch.equal(row, torch.from_numpy(logits[sequence.tokens])):
            self._result.wrong_rows += 1

    def _judge(self, case: Case) -> None:
        tokens, expected = tuple(self._tokens[case.job.name]), case.answer.tokens
        ended = self._ends.get(case.job.name)
        self._result.jobs += 1
        self._result.resumed += bool(case.answered)
        self._result.tokens += len(tokens) - len(case.answered)
        if ended and ended.reason == "cancelled" and case.job.cancelled_after is not None:
            self._result.cancelled += 1
            is_right = tokens == expected[: len(tokens)]
        else:
            is_right = ended is not None and tokens == expected and ended.reason == case.answer.end
        if not is_right or case.job.name in self._misnumbered:
            end = f"{ended.reason}, {ended.error}" if ended else "no end"
            self._result.complain(f"{case.job.name}: {tokens} ({end}) for {expected} ({case.answer.end})")


def run_engine(model: KernelModel, cases: Sequence[Case], result: EngineResult, progress: Progress) -> None:
    """All cases through engines of one setting, a block at a time."""
    dice = random.Random(f"{result.threads}, {result.max_batch}")
    prefills, contexts = itertools.cycle(_PREFILL_TOKENS), itertools.cycle(_CONTEXTS)
    start = time.perf_counter()
    for first in range(0, len(cases), _BLOCK):
        progress.say(f"the engine, {result.threads} threads, max batch {result.max_batch}: jobs from {first}")
        few = next(contexts)
        kv_tokens = few * model.config.context_length if few else None
        Trial(model, cases[first : first + _BLOCK], result, next(prefills), kv_tokens, dice).run()
    result.seconds = time.perf_counter() - start


def answer_with_progress(
    reference: Reference, jobs: Sequence[RandomJob], sample_every: int, progress: Progress
) -> list[Case]:
    """Every job with the reference's answer."""
    answers: list[Answer] = []
    progress.say(f"the reference loop: {len(jobs)} jobs")
    for some in answer_all(reference, jobs, sample_every):
        answers += some
        progress.say_again(f"the reference loop: {len(answers)} of {len(jobs)} jobs")
    return [Case(job, answer) for job, answer in zip(jobs, answers, strict=True)]


@click.command(context_settings={"show_default": True})
@model_option
@dtype_option
@click.option("--jobs", type=click.IntRange(min=1), default=10_000, help="Random jobs.")
@click.option("--sample-every", type=click.IntRange(min=1), default=20, help="Logits are compared of one job in these.")
@click.option("--threads", type=click.IntRange(min=1), multiple=True, default=(1, 2), help="Threads of the engine.")
@click.option("--max-batch", type=click.IntRange(min=1), multiple=True, default=(1, 7, 64), help="Its slots.")
@click.option("--seed", type=int, default=0, help="Other jobs for another seed.")
@click.option("--reference-kernels", help="Back end of the reference, plain for instance.  [default: the engine's own]")
@json_option
def main(**options: Any) -> None:
    """Compare the engine with the reference loop, token by token and bit by bit; exit code 1 if anything differs.

    Example: python benchmarks/exactness.py --jobs 1000
    """
    settings = Settings(**options)
    if settings.reference_kernels not in (None, *backends()):
        raise click.UsageError(
            f"--reference-kernels must be one of {', '.join(backends())}, got {settings.reference_kernels}"
        )
    model = load_model(settings.folder, dtype=settings.dtype)
    results = [EngineResult(threads, slots) for threads in settings.threads for slots in settings.max_batch]
    progress = Progress(1 + len(results) * -(-settings.jobs // _BLOCK))
    jobs = draw_jobs(settings.jobs, model.config, settings.seed)
    cases = answer_with_progress(settings.reference, jobs, settings.sample_every, progress)
    for result in results:
        run_engine(model, cases, result, progress)
    progress.clear()
    click.echo(table(HEAD, [result.cells() for result in results]))
    complaints = [text for result in results for text in result.complaints]
    for text in complaints[:_SHOWN]:
        click.echo(f"{text:.300}", err=True)
    total = _totals(results)
    click.echo(_verdict(total))
    kernels = {"engine": backend(), "reference": settings.reference_kernels or backend()}
    click.echo(f"Weights in {settings.dtype}; kernels: {kernels['engine']}, the reference's: {kernels['reference']}")
    content = {"benchmark": "exactness", "seed": settings.seed, "dtype": settings.dtype, "kernels": kernels}
    runs = [asdict(result) for result in results]
    write_json(settings.json_file, content | {"runs": runs} | total | facts(settings.folder, model))
    sys.exit(1 if total["mismatches"] else 0)


def _totals(results: Sequence[EngineResult]) -> dict[str, Any]:
    wrong = sum(result.wrong_rows + result.wrong_jobs for result in results)
    counts = {name: sum(getattr(result, name) for result in results) for name in ("jobs", "tokens", "rows")}
    return counts | {"mismatches": wrong}


def _verdict(total: dict[str, Any]) -> str:
    return (
        f"{total['jobs']:,} jobs, {total['tokens']:,} tokens, {total['rows']:,} rows of logits compared with the "
        f"reference: {total['mismatches']:,} mismatches"
    )


if __name__ == "__main__":
    main()
