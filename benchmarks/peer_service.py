"""Our whole service as one more peer: a real Redis, a ``minilab-worker`` process, and this process as its client.

The clock runs from the first submit to the last answer read: submitting, RQ's
bookkeeping, publishing each token and reading the answers back all take place on the same cores.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import redis
import service
from peer_protocol import Job, Load, Peer, family, main

from minilab_gen.protocol import embedded, keys
from minilab_gen.protocol.connection import BLOCK_MS
from minilab_gen.protocol.events import TokenEvent, entry_id
from minilab_gen.protocol.streams import read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest


def load(settings: Load) -> Peer:
    """Redis and worker, both stopped when this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    connection = stack.enter_context(service.private_redis())
    worker = stack.enter_context(service.worker(connection, settings.checkpoint, settings.max_batch, settings.threads))

    def run(jobs: list[Job]) -> list[list[int]]:
        names = [
            enqueue(connection, GenerationRequest(tuple(job.prompt), job.max_new_tokens), Submission()) for job in jobs
        ]
        # An answer's last token is its max_new_tokens-th, since no job has a stop token: its end comes right behind.
        last_tokens = {name: job.max_new_tokens for name, job in zip(names, jobs, strict=True)}
        answers = {name: _read_answer(connection, name) for name in _as_they_end(connection, worker, last_tokens)}
        return [answers[name] for name in names]

    def processes() -> list[int]:
        server = embedded.status().pid
        return [pid for pid in family(os.getpid()) if pid != os.getpid()] + ([server] if server else [])

    return Peer(f"{service.server_version(connection)}, rq {version('rq')}", run, processes)


def _as_they_end(connection: redis.Redis, worker: service.WorkerProcess, last_tokens: dict[str, int]) -> Iterator[str]:
    """Each job's id once its stream has ended. Nothing is read meanwhile, as no peer hands out tokens one by one."""
    waiting: dict[Any, Any] = {keys.token_stream(name): entry_id(last) for name, last in last_tokens.items()}
    names = {keys.token_stream(name): name for name in last_tokens}
    while waiting:
        ended: Any = connection.xread(waiting, block=BLOCK_MS)
        worker.check_alive()
        for stream, _ in ended or ():
            del waiting[stream.decode()]
            yield names[stream.decode()]


def _read_answer(connection: redis.Redis, name: str) -> list[int]:
    return [event.token_id for event in read_stream(connection, name) if isinstance(event, TokenEvent)]


if __name__ == "__main__":
    main(load)
