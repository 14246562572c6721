"""Our HTTP interface beside other servers of OpenAI's API: same folder, same load, in one run.

``python benchmarks/servers.py --model DIR --llama-server PATH``

The load comes from ``vllm bench serve``, vLLM's own generator: prompts of random tokens, greedy, a fixed number of new
tokens, so many requests at any time, streamed. All servers compute in float32 with all cores. In each round they take
turns, each time another one first, and the others stand still. Starting, loading and a first round are not timed.

It needs the environment ``vllm`` of ``benchmarks/install_peers.sh``, which has the load generator; for llama.cpp the
environment ``llama_cpp``, which converts, and ``llama-server``, which no package brings: the source archive of
llama-cpp-python has what it is built from.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import service
from http_overhead import gateway

from minilab_gen.bench import json_option, load_model
from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import Progress, facts, table, write_json
from minilab_gen.protocol import keys

_ENVIRONMENTS: Final = Path.home() / ".cache" / "minilab-peers"
_PATIENCE: Final = 600.0
"""Seconds for a server to start: vLLM compiles as it loads; and for one run of the load."""

_BENCH: Final = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""``vllm bench serve`` by its module: the program of the CPU build looks for a package by the name of the other."""

_LEAST_SHARE: Final = 0.9
"""Of the requests that must be answered in a run that counts."""

_FIGURES: Final = ("completed", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    folder: Path
    gguf: Path | None
    llama_server: Path | None
    requests: int
    at_once: int
    prompt_tokens: int
    new_tokens: int
    rounds: int
    environments: Path
    json_file: Path | None

    @property
    def max_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens + 128  # room for what the generator's texts become elsewhere


@dataclass(slots=True)
class Server:
    """One that runs, and what was measured of it."""

    name: str
    port: int
    model: str
    pids: tuple[int, ...]
    """Its processes; a negative one stands for a group, as for ``os.kill``."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What its bodies need besides."""
    runs: list[Mapping[str, float]] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, number)

    def median(self, figure: str) -> float:
        return statistics.median(run[figure] for run in self.runs)


@contextmanager
def started(name: str, command: list[str], log: Path, **variables: str) -> Iterator[Server]:
    """Another server, which listens on the port that stands for PORT in its command; ended after."""
    port = _free_port()
    command = [part.replace("PORT", str(port)) for part in command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            process_group=0,
        )
    try:
        _await_health(name, process, port, log)
        yield Server(name, port, "served", (-process.pid,))
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_well(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _await_health(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + _PATIENCE
    while True:
        if _is_well(port):
            return
        if process.poll() is not None or time.monotonic() > give_up:
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise MiniLabError(f"{name} must start within {_PATIENCE:.0f} s, it said: {tail}")
        time.sleep(0.2)


@contextmanager
def ours(settings: Settings) -> Iterator[Server]:
    """A Redis, a worker and a gateway."""
    with (
        service.private_redis() as connection,
        service.worker(connection, settings.folder, settings.at_once, None) as running,
        gateway() as serving,
    ):
        pids = (running.process.pid, serving.process.pid)
        only_data = {"stream_options": {"include_usage": True, "include_event_ids": False}}  # as the generator reads
        yield Server("MiniLab Gen", serving.port, keys.DEFAULT_MODEL, pids, only_data)


def vllm(settings: Settings, scratch: Path) -> contextlib.AbstractContextManager[Server]:
    python = settings.environments / "vllm" / "bin" / "python"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(settings.folder)]
    command += ["--served-model-name", "served", "--dtype", "float32", "--port", "PORT", "--host", "127.0.0.1"]
    command += ["--max-model-len", str(settings.max_tokens), "--max-num-seqs", str(settings.at_once)]
    command += ["--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return started(
        "vLLM",
        command,
        scratch / "vllm.log",
        VLLM_CPU_OMP_THREADS_BIND=cores,
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_NO_USAGE_STATS="1",
    )


def llama_cpp(settings: Settings, scratch: Path) -> contextlib.AbstractContextManager[Server]:
    assert settings.llama_server is not None and settings.gguf is not None
    file = scratch / "float32.gguf"
    unpack = (
        "import sys; sys.path.insert(0, sys.argv[1]); from gguf_llama_cpp import unpack; from pathlib import Path; "
    )
    unpack += "unpack(Path(sys.argv[2]), Path(sys.argv[3]))"
    python = settings.environments / "llama_cpp" / "bin" / "python"
    here = str(Path(__file__).parent)
    subprocess.run([str(python), "-c", unpack, here, str(settings.gguf), str(file)], check=True)
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(settings.llama_server), "--model", str(file), "--port", "PORT", "--host", "127.0.0.1"]
    command += ["--alias", "served", "--parallel", str(settings.at_once), "--threads", threads]
    command += ["--ctx-size", str(settings.at_once * settings.max_tokens), "--cache-type-k", "f32"]
    command += ["--cache-type-v", "f32", "--no-webui", "--no-cache-prompt"]
    return started("llama.cpp", command, scratch / "llama.log")


def load(server: Server, settings: Settings, scratch: Path, seed: int) -> Mapping[str, float]:
    """One run of the load; what the generator says of it."""
    result = scratch / "result.json"
    python = settings.environments / "vllm" / "bin" / "python"
    options = {
        "backend": "openai",
        "base-url": f"http://127.0.0.1:{server.port}",
        "endpoint": "/v1/completions",
        "model": str(settings.folder),
        "served-model-name": server.model,
        "dataset-name": "random",
        "random-input-len": settings.prompt_tokens,
        "random-output-len": settings.new_tokens,
        "num-prompts": settings.requests,
        "max-concurrency": settings.at_once,
        "seed": seed,
        "temperature": 0,
        "percentile-metrics": "ttft,itl",
        "extra-body": json.dumps(server.more),
        "result-dir": str(result.parent),
        "result-filename": result.name,
    }
    command = [str(python), "-c", _BENCH, "--ignore-eos", "--save-result", "--disable-tqdm"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if done.returncode:
        raise MiniLabError(f"the load on {server.name} failed: {(done.stdout + done.stderr)[-2000:]}")
    figures: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    # llama.cpp's server leaves one of some requests without an answer, or ends it at another end token than told.
    if figures["completed"] < _LEAST_SHARE * settings.requests:
        raise MiniLabError(
            f"{server.name} must answer {settings.requests} requests, got {figures['completed']} answers"
        )
    return {name: float(figures[name]) for name in _FIGURES}


def take_turns(servers: list[Server], settings: Settings, scratch: Path, progress: Progress) -> None:
    """One round to warm up, then those that count."""
    try:
        for server in servers:
            server.signal(signal.SIGSTOP)
        for number in range(settings.rounds + 1):
            first = number % len(servers)
            for server in servers[first:] + servers[:first]:
                progress.say(f"{server.name}, round {number} of {settings.rounds}")
                server.signal(signal.SIGCONT)
                figures = load(server, settings, scratch, number)
                server.signal(signal.SIGSTOP)
                click.echo(f"{server.name}, round {number}: {dict(figures)}", err=True)
                if number:
                    server.runs.append(figures)
    finally:
        for server in servers:  # else none could end
            server.signal(signal.SIGCONT)


@click.command(context_settings={"show_default": True})
@click.option("--model", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--gguf", type=click.Path(exists=True, path_type=Path), help="The same model for llama.cpp.")
@click.option("--llama-server", type=click.Path(exists=True, path_type=Path), help="llama.cpp's server program.")
@click.option("--requests", type=click.IntRange(min=1), default=48, help="Requests of one run.")
@click.option("--at-once", type=click.IntRange(1, 256), default=16, help="Requests at any time.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=32, help="Of each request.")
@click.option("--new-tokens", type=click.IntRange(min=1), default=64, help="Of each answer.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Times that all are run, in turn.")
@click.option("--environments", type=click.Path(path_type=Path), default=_ENVIRONMENTS, help="See install_peers.sh.")
@json_option
def main(**options: Any) -> None:
    """Compare our HTTP interface with other servers.

    Example: python benchmarks/servers.py --model DIR --gguf FILE --llama-server build/bin/llama-server
    """
    settings = Settings(**options)
    if (settings.gguf is None) != (settings.llama_server is None):
        raise click.UsageError("--gguf and --llama-server go together")
    model = load_model(settings.folder)
    progress = Progress(3 * (settings.rounds + 1))
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minilab-servers-")))
            servers = [stack.enter_context(ours(settings)), stack.enter_context(vllm(settings, scratch))]
            if settings.llama_server is not None:
                servers.append(stack.enter_context(llama_cpp(settings, scratch)))
            take_turns(servers, settings, scratch, progress)
    except MiniLabError as error:
        raise click.ClickException(str(error)) from error
    progress.clear()
    _show(servers, settings)
    runs = {server.name: server.runs for server in servers}
    write_json(settings.json_file, {"benchmark": "servers", "runs": runs} | facts(settings.folder, model))


def _show(servers: list[Server], settings: Settings) -> None:
    ours_first = servers[0].median("output_throughput")
    rows = [
        [
            server.name,
            *(f"{server.median(name):,.1f}" for name in _FIGURES),
            f"{server.median('output_throughput') / ours_first:.2f}",
        ]
        for server in servers
    ]
    click.echo(table(["", "answered", "tokens/s", "first token ms", "p99", "gap ms", "p99", "of ours"], rows))
    click.echo(
        f"{settings.requests} requests, {settings.at_once} at once, {settings.prompt_tokens} prompt and "
        f"{settings.new_tokens} new tokens, greedy, streamed; medians of {settings.rounds} rounds after one to warm up."
    )


if __name__ == "__main__":
    main()
