"""Our engine and service beside the libraries that one would otherwise take: same checkpoint, same jobs, in one run.

``benchmarks/install_peers.sh`` installs the libraries, each into an
environment of its own; those that are not there are left out. ``python benchmarks/peers.py``

All jobs are handed over at once, greedy, in float32, without a stop token. In each round the peers take turns, each
time another one first, and the others stand still: so a machine that slows down meanwhile slows all of them. What is
said of a peer against the engine is the median over the rounds. Converting the checkpoint, starting, loading,
compiling and a first round are not timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from peer_comparison import HEAD, Comparison, Record
from peer_process import PeerError, PeerProcess, Program
from peer_protocol import Job
from peer_workload import Workload, draw_jobs, write_float32_checkpoint

from minilab_gen.bench import json_option, load_model, model_option
from minilab_gen.measurement import Progress, facts, table, write_json

ENGINE: Final = Program("engine", "peer_engine.py", None)
PROGRAMS: Final = (
    ENGINE,
    Program("service", "peer_service.py", None),
    Program("openvino", "peer_openvino.py", "openvino", converts=True),
    Program("ctranslate2", "peer_ctranslate2.py", "ctranslate2", converts=True),
    Program("vllm", "peer_vllm.py", "vllm", preloads=True),
    Program("llama.cpp", "peer_llama_cpp.py", "llama_cpp", converts=True),
    Program("transformers-batching", "peer_transformers.py", "transformers", ("continuous",)),
    Program("transformers", "peer_transformers.py", "transformers", ("one-by-one",)),
)

_NAMES: Final = [program.name for program in PROGRAMS]

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
    jobs: int
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]
    threads: int
    rounds: int
    only: tuple[str, ...]
    environments: Path
    json_file: Path | None

    @property
    def workload(self) -> Workload:
        return Workload(self.jobs, self.prompt_tokens, self.new_tokens)

    @property
    def programs(self) -> list[Program]:
        """The engine, and those asked for; all of them by default."""
        return [program for program in PROGRAMS if program is ENGINE or not self.only or program.name in self.only]


@contextmanager
def start_peers(settings: Settings, progress: Progress) -> Iterator[tuple[list[Job], list[Contender]]]:
    """The jobs, and every peer asked for, loaded unless its record says why not. All are ended after."""
    with tempfile.TemporaryDirectory(prefix="minilab-peers-") as scratch, ExitStack() as stack:
        checkpoint = Path(scratch, "checkpoint")
        write_float32_checkpoint(settings.folder, checkpoint)
        jobs = draw_jobs(checkpoint, settings.workload)
        contenders: list[Contender] = []
        for program in settings.programs:
            progress.say(f"{program.name}: load")
            folder = Path(scratch, str(len(contenders)))
            peer = PeerProcess(program, settings.environments, folder, settings.threads)
            record = Record(program.name)
            contenders.append(Contender(peer, record))
            stack.callback(peer.close)
            try:
                record.version = peer.load(checkpoint, settings.threads, len(jobs), settings.workload.max_tokens)
            except PeerError as error:
                record.failure = str(error)
        yield jobs, contenders


def take_turns(contenders: list[Contender], jobs: list[Job], rounds: int, progress: Progress) -> None:
    """One round to warm up, then those that count; one that fails is out."""
    for number in range(rounds + 1):
        first = number % len(contenders)
        for peer, record in contenders[first:] + contenders[:first]:
            progress.say(f"{record.name}: round {number}" if number else f"{record.name}: warm up")
            if record.failure:
                continue
            try:
                run = peer.run(jobs)
            except PeerError as error:
                record.failure = str(error)
                continue
            if number:
                record.runs.append(run)


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--jobs", type=click.IntRange(1, 1024), default=64, help="Jobs, all at once.")
@click.option("--prompt-tokens", type=(int, int), default=(2, 32), help="Shortest and longest prompt.")
@click.option("--new-tokens", type=(int, int), default=(32, 96), help="Shortest and longest answer.")
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads of each peer.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, help="Times that everything is run, in turn.")
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

    Example: python benchmarks/peers.py --only openvino --only llama.cpp --rounds 3
    """
    settings = Settings(**options)
    model = load_model(settings.folder)
    longest, context = settings.workload.max_tokens, model.config.context_length
    if longest > context:
        raise click.UsageError(f"prompt and answer must fit the model's context of {context} tokens, got {longest}")
    progress = Progress(len(settings.programs) * (settings.rounds + 2))
    with start_peers(settings, progress) as (jobs, contenders):
        take_turns(contenders, jobs, settings.rounds, progress)
    progress.clear()
    records = [contender.record for contender in contenders]
    engine = records[0]
    if engine.failure:
        raise click.ClickException(f"the engine must run, or there is nothing to compare with: {engine.failure}")
    compared = [Comparison.of(record, engine, jobs, model) for record in records if record.failure is None]
    click.echo(table(HEAD, [comparison.cells() for comparison in compared]))
    new_tokens = sum(job.max_new_tokens for job in jobs)
    click.echo(f"{len(jobs)} jobs, {new_tokens} new tokens, {settings.threads} threads, float32, greedy, ", nl=False)
    click.echo(f"{settings.rounds} rounds after one to warm up. Conversion, loading and compiling are not timed.")
    for comparison in compared:
        if comparison.difference:
            click.echo(f"{comparison.name}: {comparison.difference}")
    failures = {record.name: record.failure for record in records if record.failure}
    for name, failure in failures.items():
        click.echo(f"{name}: {failure}")
    write_json(settings.json_file, _to_json(settings, jobs, compared, failures) | facts(settings.folder, model))


def _to_json(
    settings: Settings, jobs: list[Job], compared: list[Comparison], failures: dict[str, str]
) -> dict[str, Any]:
    return {
        "benchmark": "peers",
        "threads": settings.threads,
        "rounds": settings.rounds,
        "jobs": len(jobs),
        "prompt_tokens": list(settings.prompt_tokens),
        "new_tokens": list(settings.new_tokens),
        "peers": [comparison.to_json() for comparison in compared],
        "failed": failures,
    }


if __name__ == "__main__":
    main()
