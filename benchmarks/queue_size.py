"""What many waiting jobs cost: time to submit and claim, memory in Redis: ``python benchmarks/queue_size.py``.

Jobs are claimed and ended by a worker's job store alone, and their tokens are made up.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import redis
from minilab_worker.job_store import Claim, Completion
from minilab_worker.rq import RqJobStore
from service import QUEUE, private_redis, server_version

from minilab_gen.bench import json_option
from minilab_gen.measurement import Percentiles, Progress, table, write_json
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.jobs import view
from minilab_gen.protocol.script_cache import forget_connection
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

_log = logging.getLogger(__name__)

PROMPT_TOKENS: Final = 32
ANSWER_TOKENS: Final = 100
"""Of each job; the shipped model's context holds 128."""

CLAIMS: Final = 300
"""Claims timed at each length of the queue: one takes about a millisecond, and the slow hundredth is to be seen."""

FINISHED_JOBS: Final = 1000
"""Jobs run to their end to see what stays of one: enough to drown what the server holds for itself."""

_LEASE: Final = 600
"""Seconds: the lease must not expire, since it is not renewed."""

_WORDS: Final = (" the", " of", " Fogg", ",", " a", "ing", " steam", "er", " eighty", ".")
"""Texts of tokens, of the lengths that the shipped tokenizer's have."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What was measured while a number of jobs waited."""

    queued: int
    submits_per_second: float | None
    """While the queue grew to this length from the one before; None where it did not grow."""
    bytes_per_job: int | None
    """Memory that the server took for each job by which the queue grew."""
    claim: Percentiles
    status: Percentiles
    """What ``minilab-client status`` asks about the last job in the queue; its position is counted."""

    def cells(self) -> list[str]:
        rate = "-" if self.submits_per_second is None else f"{self.submits_per_second:,.0f}"
        memory = "-" if self.bytes_per_job is None else f"{self.bytes_per_job:,}"
        return [f"{self.queued:,}", rate, memory, str(self.claim), str(self.status)]


HEAD: Final = ("jobs that wait", "submits/s", "bytes a job", "claim ms", "status ms")


def used_bytes(connection: redis.Redis) -> int:
    """Memory that the server holds for data and clients."""
    memory: dict[str, Any] = connection.info("memory")
    return int(memory["used_memory"])


def submit(connection: redis.Redis) -> str:
    prompt = tuple(range(100, 100 + PROMPT_TOKENS))
    return enqueue(connection, GenerationRequest(prompt, ANSWER_TOKENS), Submission())


@contextmanager
def store_on(queue: str) -> Iterator[RqJobStore]:
    """A worker's job store without a worker."""
    store = RqJobStore(connect(), [queue], _LEASE, "no model")
    store.open(_log.debug)
    with closing(store):
        yield store


def finish(connection: redis.Redis, store: RqJobStore, claim: Claim) -> None:
    """What a worker writes for a whole answer: the stream, then RQ's records."""
    tokens = [TokenEvent(n, 100 + n, _WORDS[n % len(_WORDS)]) for n in range(1, ANSWER_TOKENS + 1)]
    end = EndEvent("length", ANSWER_TOKENS, PROMPT_TOKENS)
    written: list[Event] = [*tokens, end]
    publish(connection, [(claim.job.job_id, event) for event in written], running_ttl=keys.RETENTION)
    text = "".join(token.text for token in tokens)
    result = {"ids": [token.token_id for token in tokens]} | end.to_json() | {"text": text}
    store.finish([Completion(claim.job, result)])


def claim_one(store: RqJobStore) -> Claim:
    (claim,) = store.claim(1, 0)
    return claim


def bytes_of_finished(connection: redis.Redis, store: RqJobStore, count: int) -> int:
    """Memory that stays for a day of each finished job."""
    before = used_bytes(connection)
    for _ in range(count):
        submit(connection)
        finish(connection, store, claim_one(store))
    return round((used_bytes(connection) - before) / count)


def timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure_depth(connection: redis.Redis, store: RqJobStore, waiting: int, queued: int) -> Depth:
    """Let the queue grow from ``waiting`` to ``queued`` jobs, then claim and look at its two ends."""
    grown, before = queued - waiting, used_bytes(connection)
    seconds = sum(timed(lambda: submit(connection)) for _ in range(grown))
    memory = round((used_bytes(connection) - before) / grown) if grown else None
    claims, looks = [], []
    for _ in range(CLAIMS):
        last = submit(connection)  # in place of the one that is claimed, so that the length stays
        looks.append(timed(lambda last=last: view(connection, last)))  # type: ignore[misc]
        start = time.perf_counter()
        claim = claim_one(store)
        claims.append(time.perf_counter() - start)
        publish(connection, [(claim.job.job_id, EndEvent("error", 0, PROMPT_TOKENS))], running_ttl=keys.RETENTION)
        store.finish([Completion(claim.job, failure="measured")])
    rate = round(grown / seconds, 1) if grown else None
    return Depth(queued, rate, memory, Percentiles.of(claims), Percentiles.of(looks))


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), default=100_000, show_default=True, help="Length of the queue.")
@json_option
def main(jobs: int, json_file: Path | None) -> None:
    """Measure what waiting and finished jobs cost, on a Redis of the program's own, without a model.

    Example: python benchmarks/queue_size.py --jobs 10000
    """
    steps = [0, *(step for step in (1_000, 10_000, 100_000) if step < jobs), jobs]
    progress = Progress(len(steps) + 1)
    depths: list[Depth] = []
    with private_redis() as connection, store_on(QUEUE) as store:
        server = server_version(connection)
        progress.say(f"{FINISHED_JOBS} jobs run to their end")
        finished = bytes_of_finished(connection, store, FINISHED_JOBS)
        waiting = 0
        for step in steps:
            progress.say(f"{step} jobs wait")
            depths.append(measure_depth(connection, store, waiting, step))
            waiting = step
        forget_connection(connection)
    progress.clear()
    click.echo(table(HEAD, [depth.cells() for depth in depths]))
    click.echo(f"\nclaim and status: median / 99th percentile of {CLAIMS}, alone on {server}")
    click.echo(f"a finished job of {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens: {finished:,} bytes for a day")
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    rows = [asdict(depth) for depth in depths]
    write_json(json_file, {"server": server, "machine": machine, "finished_job_bytes": finished, "depths": rows})


if __name__ == "__main__":
    main()
