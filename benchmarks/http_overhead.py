"""What the HTTP interface costs: the same jobs through a gateway and straight through Redis, in one run.

``python benchmarks/http_overhead.py``

The first token of a job that comes alone, and tokens per second of many streams that are read at once. Both ways share
one Redis and one worker; in each round one follows the other, every other round in reverse order. Then so many streams
are opened that nothing is written to, and what the gateway holds in memory is read.
"""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import redis
import service
from stream_readers import Load, Readers, readers

from minilab_gen.bench import draw_requests, json_option, load_model, model_option
from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import (
    SUMMARY_HEAD,
    Progress,
    RunResult,
    Summary,
    facts,
    peak_memory,
    ratio,
    table,
    write_json,
)
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

_JOBS_PER_STREAM: Final = 8
_ALONE_JOBS: Final = 40
_ALONE_TOKENS: Final = 8
_START_SECONDS: Final = 60.0
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Gateway:
    """A ``minilab-gateway`` process."""

    process: subprocess.Popen[bytes]
    port: int


@contextmanager
def gateway() -> Iterator[Gateway]:
    """A gateway process on the private server, ready for requests; ended at the end."""
    command = [sys.executable, "-m", "minilab_gateway", "--port", "0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            give_up, port = time.monotonic() + _START_SECONDS, None
            while port is None:
                log.seek(0)
                said = log.read().decode(errors="replace")
                if process.poll() is not None or time.monotonic() > give_up:
                    raise MiniLabError(f"a gateway must answer within {_START_SECONDS:.0f} s, this one said: {said}")
                found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
                port = int(found[1]) if found and _is_well(int(found[1])) else None
                time.sleep(0.05)
            yield Gateway(process, port)
        finally:
            process.terminate()
            process.wait()


def _is_well(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


@dataclass(slots=True)
class Runs:
    """What the rounds gave, one after the other."""

    redis: list[RunResult] = field(default_factory=list)
    http: list[RunResult] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """One execution of this program."""

    connection: redis.Redis
    readers: Readers
    port: int
    progress: Progress

    def measure(self, requests: list[GenerationRequest], at_once: int, rounds: int, what: str) -> Runs:
        """The same requests both ways, in turn; the first round is not kept."""
        runs = Runs()
        ways = [(runs.redis, None), (runs.http, self.port)]
        for number in range(rounds + 1):
            self.progress.say(f"{what}, round {number} of {rounds}")
            for kept, port in ways if number % 2 == 0 else reversed(ways):
                result = self.readers.read(Load(requests, at_once, port))
                if result.tokens != sum(request.max_new_tokens for request in requests):
                    raise MiniLabError(f"every token must come once, got {result.tokens}")
                if number:
                    kept.append(result)
        return runs

    def memory_of_silent_streams(self, gateway: Gateway, running: service.WorkerProcess, count: int) -> float:
        """Open so many streams of jobs that wait; the most memory that the gateway has held, in MB."""
        self.progress.say(f"{count} streams that are silent")
        with ExitStack() as stack:
            stack.enter_context(running.standing_still())
            for _ in range(count):
                job_id = enqueue(self.connection, GenerationRequest((0,), 1), Submission())
                stream = stack.enter_context(closing(socket.create_connection(("127.0.0.1", self.port))))
                path = f"/v1/completions/cmpl-{job_id}?stream=true"
                stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                if (status := stream.recv(12)) != b"HTTP/1.1 200":
                    raise MiniLabError(f"a stream must begin with 200, got {status!r}")
            return (peak_memory(gateway.process.pid) or 0) / _MILLION


@click.command(context_settings={"show_default": True})
@model_option
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads of the worker.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, help="Times that both are run, in turn.")
@click.option("--streams", type=click.IntRange(1, 256), default=64, help="Streams that are read at once.")
@click.option("--silent", type=click.IntRange(0, 20_000), default=1000, help="Silent streams to hold; 0 for none.")
@json_option
def main(folder: Path, threads: int, rounds: int, streams: int, silent: int, json_file: Path | None) -> None:
    """Measure what streams cost that are read over HTTP, against those that are read from Redis.

    Example: python benchmarks/http_overhead.py --rounds 3
    """
    model = load_model(folder, threads)
    _allow_files(2 * silent + 256)
    progress = Progress(2 * (rounds + 1) + 1)
    many = draw_requests(_JOBS_PER_STREAM * streams, model.config)
    alone = [GenerationRequest(request.prompt, _ALONE_TOKENS) for request in draw_requests(_ALONE_JOBS, model.config)]
    try:
        with (
            service.private_redis() as connection,
            service.worker(connection, folder, streams, threads) as running,
            gateway() as serving,
            readers() as reading,
        ):
            bench = Bench(connection, reading, serving.port, progress)
            one = bench.measure(alone, 1, rounds, "one stream at a time")
            together = bench.measure(many, streams, rounds, f"{streams} streams")
            memory = bench.memory_of_silent_streams(serving, running, silent) if silent else None
            server = service.server_version(connection)
    except MiniLabError as error:
        raise click.ClickException(str(error)) from error
    progress.clear()
    _show(one, together, streams)
    if memory is not None:
        click.echo(f"With {silent} silent streams open, the gateway held {memory:.0f} MB at most.")
    click.echo(f"Times are p50 / p99. {threads} threads, {server}, {rounds} rounds, greedy.")
    content = {"benchmark": "http_overhead", "threads": threads, "rounds": rounds, "redis": server, "silent_mb": memory}
    write_json(json_file, content | facts(folder, model) | _to_json(one, together, streams))


def _allow_files(count: int) -> None:
    """Let this process and those that it starts open so many, where the system's own limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))


def _show(one: Runs, together: Runs, streams: int) -> None:
    rows = [
        [way, str(at_once), *Summary.of(getattr(runs, way)).cells(), f"{ratio(runs.http, runs.redis):.2f}"[:4]]
        for at_once, runs in ((1, one), (streams, together))
        for way in ("redis", "http")
    ]
    click.echo(table(["", "streams", *SUMMARY_HEAD, "http / redis"], rows))
    later = _first_token(one.http) - _first_token(one.redis)
    click.echo(f"The first token comes {later:.2f} ms later through the gateway (p50).")


def _first_token(runs: Sequence[RunResult]) -> float:
    return Summary.of(runs).first_token.p50


def _to_json(one: Runs, together: Runs, streams: int) -> dict[str, Any]:
    return {
        "runs": [
            {"way": way, "streams": at_once} | Summary.of(getattr(runs, way)).to_json()
            for at_once, runs in ((1, one), (streams, together))
            for way in ("redis", "http")
        ],
        "ratio": ratio(together.http, together.redis),
    }


if __name__ == "__main__":
    main()
