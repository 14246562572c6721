"""Our engine and service beside the libraries that one would otherwise take: same checkpoint, same jobs, in one run.

``benchmarks/install_peers.sh`` installs the libraries, each into an
environment of its own; those that are not there are left out. ``python benchmarks/peers.py``

So many jobs are handed over at once, greedy, in float32, without a stop token. In each round the peers take turns, each
time another one first, and the others stand still: so a machine that slows down meanwhile slows all of them. What is
said of a peer against the engine is the median over the rounds. Converting the checkpoint, starting, loading,
compiling and a first round are not timed. ``--busy 2`` lets two other processes compete with each peer, as on a machine
that is not its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from busy import busy_loops
from peer_comparison import HEAD, Comparison, Record
from peer_process import PeerError, PeerProcess, Program, Run
from peer_protocol import Job
from peer_workload import Workload, draw_jobs, write_float32_checkpoint

from minilab_gen.bench import json_option, load_model, model_option
from minilab_gen.measurement import Progress, facts, table, write_json
from minilab_gen.models.kernel_model import KernelModel

ENGINE: Final = Program("engine", "peer_engine.py", None, narrows=True)
PROGRAMS: Final = (
    ENGINE,
    Program("service", "peer_service.py", None),
    Program("openvino", "peer_openvino.py", "openvino", converts=True),
    Program("ctranslate2", "peer_ctranslate2.py", "ctranslate2", converts=True),
    Program("vllm", "peer_vllm.py", "vllm", preloads=True),
    Program("llama.cpp", "peer_llama_cpp.py", "llama_cpp", converts=True, narrows=True),
    Program("onnxruntime", "peer_onnxruntime.py", "onnxruntime", converts=True),
    Program("transformers-batching", "peer_transformers.py", "transformers", ("continuous",)),
    Program("transformers", "peer_transformers.py", "transformers", ("one-by-one",)),
)

SIZES: Final = (1, 64, 256)

_NAMES: Final = [program.name for program in PROGRAMS]

_CHECKPOINT: Final = "checkpoint"

_ENVIRONMENTS: Final = Path.home() / ".cache" / "minilab-peers"
"""Where install_peers.sh puts them unless told otherwise."""


class Contender(NamedTuple):
    """A peer and what is known of it."""

    peer: PeerProcess
    record: Record


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    folder: Path
    jobs: tuple[int, ...]
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]
    threads: int
    rounds: int
    busy: int
    int8: bool
    only: tuple[str, ...]
    environments: Path
    json_file: Path | None

    @property
    def workloads(self) -> list[Workload]:
        return [Workload(at_once, self.prompt_tokens, self.new_tokens) for at_once in sorted(self.jobs)]

    @property
    def programs(self) -> list[Program]:
        """The engine, and those asked for; all of them by default that can do it."""
        able = [program for program in PROGRAMS if program.narrows or not self.int8]
        return [program for program in able if program is ENGINE or not self.only or program.name in self.only]

    @property
    def weights(self) -> str:
        return "int8" if self.int8 else "float32"


@dataclass(frozen=True, slots=True)
class Case:
    """One number of jobs at once, and what every peer did with them."""

    workload: Workload
    jobs: list[Job]
    records: list[Record]

    @property
    def failures(self) -> dict[str, str]:
        return {record.name: record.failure for record in self.records if record.failure}

    def compare(self, model: KernelModel) -> list[Comparison]:
        """Those that ran, the engine first. Errors are click's."""
        engine = self.records[0]
        if engine.failure:
            raise click.ClickException(f"the engine must run, or there is nothing to compare with: {engine.failure}")
        ran = [record for record in self.records if record.failure is None]
        return [Comparison.of(record, engine, self.jobs, model) for record in ran]


def run_case(settings: Settings, workload: Workload, scratch: Path, progress: Progress) -> Case:
    """All peers on one workload, in turn. ``scratch`` holds the checkpoint, and what peers make of it is left there."""
    jobs = draw_jobs(scratch / _CHECKPOINT, workload)
    with start_peers(settings, workload, scratch, progress) as contenders, busy_loops(settings.busy):
        take_turns(contenders, jobs, workload.at_once, settings.rounds, progress)
    return Case(workload, jobs, [contender.record for contender in contenders])


@contextmanager
def start_peers(settings: Settings, workload: Workload, scratch: Path, progress: Progress) -> Iterator[list[Contender]]:
    """Every peer asked for, loaded unless its record says why not. All are ended after."""
    contenders: list[Contender] = []
    with ExitStack() as stack:
        for program in settings.programs:
            progress.say(f"{program.name}: load")
            peer = PeerProcess(program, settings.environments, scratch / program.name, settings.threads)
            record = Record(program.name)
            contenders.append(Contender(peer, record))
            stack.callback(peer.close)
            try:
                record.version = peer.load(
                    scratch / _CHECKPOINT,
                    threads=settings.threads,
                    max_batch=workload.at_once,
                    max_tokens=workload.max_tokens,
                    weights=settings.weights,
                )
            except PeerError as error:
                record.failure = str(error)
        yield contenders


def take_turns(contenders: list[Contender], jobs: list[Job], at_once: int, rounds: int, progress: Progress) -> None:
    """One round to warm up, then those that count; one that fails is out."""
    for number in range(rounds + 1):
        first = number % len(contenders)
        for peer, record in contenders[first:] + contenders[:first]:
            progress.say(f"{record.name}: round {number}" if number else f"{record.name}: warm up")
            if record.failure:
                continue
            try:
                run = Run.of([peer.run(jobs[start : start + at_once]) for start in range(0, len(jobs), at_once)])
            except PeerError as error:
                record.failure = str(error)
                continue
            if number:
                record.runs.append(run)


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--jobs", type=click.IntRange(1, 1024), multiple=True, default=SIZES, help="Jobs at once.")
@click.option("--prompt-tokens", type=(int, int), default=(2, 32), help="Shortest and longest prompt.")
@click.option("--new-tokens", type=(int, int), default=(32, 96), help="Shortest and longest answer.")
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads of each peer.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, help="Times that everything is run, in turn.")
@click.option("--busy", type=click.IntRange(0, 64), default=0, help="Busy processes beside each peer.")
@click.option("--int8", is_flag=True, help="Weights in eight bits, by those that have them: llama.cpp's are Q8_0.")
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Run the engine and this peer.  [default: all]")
@click.option(
    "--environments",
    type=click.Path(path_type=Path),
    default=_ENVIRONMENTS,
    help="Folder that install_peers.sh filled.",
)
@json_option
def main(**options: Any) -> None:
    """Compare our engine and service with other libraries.

    Example: python benchmarks/peers.py --jobs 64 --only openvino --only llama.cpp --rounds 3
    """
    settings = Settings(**options)
    model = load_model(settings.folder)
    longest, context = max(workload.max_tokens for workload in settings.workloads), model.config.context_length
    if longest > context:
        raise click.UsageError(f"prompt and answer must fit the model's context of {context} tokens, got {longest}")
    progress = Progress(len(settings.jobs) * len(settings.programs) * (settings.rounds + 2))
    shown: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="minilab-peers-") as scratch:
        write_float32_checkpoint(settings.folder, Path(scratch, _CHECKPOINT))
        for workload in settings.workloads:
            case = run_case(settings, workload, Path(scratch), progress)
            progress.clear()
            shown.append(_show(case, case.compare(model)))
    click.echo(
        f"{settings.threads} threads, {settings.weights}, greedy, {settings.rounds} rounds after one to warm up",
        nl=False,
    )
    click.echo(f", {settings.busy} busy processes beside. Conversion, loading and compiling are not timed.")
    content = {
        "benchmark": "peers",
        "threads": settings.threads,
        "rounds": settings.rounds,
        "busy": settings.busy,
        "weights": settings.weights,
    }
    write_json(settings.json_file, content | {"cases": shown} | facts(settings.folder, model))


def _show(case: Case, compared: list[Comparison]) -> dict[str, Any]:
    """Print a case, and return it for the JSON file."""
    at_once, jobs = case.workload.at_once, len(case.jobs)
    new_tokens = sum(job.max_new_tokens for job in case.jobs)
    click.echo(table(HEAD, [comparison.cells() for comparison in compared]))
    click.echo(f"{at_once} at once, {jobs} jobs, {new_tokens} new tokens")
    for comparison in compared:
        if comparison.difference:
            click.echo(f"{comparison.name}: {comparison.difference}")
    for name, failure in case.failures.items():
        click.echo(f"{name}: {failure}")
    click.echo()
    return {
        "jobs_at_once": at_once,
        "jobs": jobs,
        "prompt_tokens": list(case.workload.prompt_tokens),
        "new_tokens": list(case.workload.new_tokens),
        "peers": [comparison.to_json() for comparison in compared],
        "failed": case.failures,
    }


if __name__ == "__main__":
    main()
