"""Our whole service as one more peer: a real Redis, a ``minilab-worker`` process, and this process as its client.

The clock runs from the first submit to the last answer read: submitting, RQ's
bookkeeping, publishing each token and reading the answers back all take place on the same cores.
"""

from __future__ import annotations

import atexit
import os
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
        return [
            _await_answer(connection, worker, name, job.max_new_tokens) for name, job in zip(names, jobs, strict=True)
        ]

    def processes() -> list[int]:
        server = embedded.status().pid
        return [pid for pid in family(os.getpid()) if pid != os.getpid()] + ([server] if server else [])

    return Peer(f"{service.server_version(connection)}, rq {version('rq')}", run, processes)


def _await_answer(connection: redis.Redis, worker: service.WorkerProcess, name: str, tokens: int) -> list[int]:
    """A job's token ids, read once its stream has ended: no peer hands out tokens one by one.

    One stream is waited for at a time, as a program does that wants all answers. Redis looks at every stream that is
    waited for whenever one of them grows, which took it longer than all else when they were waited for together.
    """
    last: Any = {keys.token_stream(name): entry_id(tokens)}  # no job has a stop token: its end comes right behind
    while not connection.xread(last, block=BLOCK_MS):
        worker.check_alive()
    return [event.token_id for event in read_stream(connection, name) if isinstance(event, TokenEvent)]


if __name__ == "__main__":
    main(load)
