"""What tests of ``minilab-client batch`` share: runs of it, and jobs of earlier runs. It must not hold a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import redis
from click.testing import Result

from minilab_gen.batch.line import Line
from minilab_gen.protocol import keys
from minilab_gen.protocol.submission import Submission, enqueue
from support.client_program import client, end, queued, start, write


def batch(file: Path, out: Path, *options: str) -> Result:
    return client("batch", str(file), "--output", str(out), *options)


def submit_earlier(connection: redis.Redis, line: Line, attempt: int = 0) -> str:
    """A line's job as an earlier run left it in the queue."""
    return enqueue(connection, line.request, Submission(job_id=line.job_id(attempt), priority="low"))


def answer_earlier(connection: redis.Redis, line: Line, attempt: int = 0) -> str:
    """The same, answered meanwhile with the tokens 101 and 102."""
    job_id = submit_earlier(connection, line, attempt)
    start(connection, job_id)
    write(connection, job_id, "a", "b")
    end(connection, job_id, 2)
    return job_id


def run_next(connection: redis.Redis, priority: keys.Priority = "low") -> None:
    """Answer the job that has waited longest, as a worker does."""
    job_id = queued(connection, priority)[0]
    start(connection, job_id)
    write(connection, job_id, "a", "b")
    end(connection, job_id, 2)


def is_queued(connection: redis.Redis, count: int) -> bool:
    """Whether so many jobs wait, and no more."""
    return len(queued(connection, "low")) == count


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Let something happen while the program runs; what goes wrong there is raised here."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        yield
        running.result()


def fail_earlier(connection: redis.Redis, line: Line, attempt: int = 0) -> None:
    """The same, but that it has failed."""
    job_id = submit_earlier(connection, line, attempt)
    start(connection, job_id)
    end(connection, job_id, 0, "error", error="the model broke")
