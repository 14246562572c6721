"""The jobs of a run, each with a reader from its first moment on, and the check of all of them at the end.

Requests, readers and the check are those of the chaos runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import cycle
from typing import Any, Final, Self

from chaos.audit import Audit, Findings, unfinished
from chaos.checkpoint import Answers
from chaos.load import PlannedJob, request_pool
from chaos.readers import Reader
from rq.job import Job
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

LIMIT: Final = 180.0
"""Seconds for anything here to come true, on a machine that is loaded: takeovers and new workers are on the way."""

_REDIS_WAIT: Final = 60.0  # seconds for a Redis in a container to come up
_LONG: Final = 60  # tokens that a job may have at least, where it is to be met in its middle


class Jobs:
    """Jobs on the Redis of one project, and their readers."""

    def __init__(self, url: str, answers: Answers) -> None:
        self._url, self._answers = url, answers
        self._connection = connect(url, wait=_REDIS_WAIT)
        self._requests = cycle(request_pool())
        self._long_requests = cycle([request for request in request_pool() if request.max_new_tokens >= _LONG])
        self._planned: list[PlannedJob] = []
        self._readers: list[Reader] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()
        self._connection.close()

    @property
    def count(self) -> int:
        return len(self._planned)

    @property
    def tokens(self) -> int:
        """Tokens in all streams."""
        return sum(self.lengths(job.job_id for job in self._planned).values())

    def submit(self, number: int, *, long: bool = False) -> list[str]:
        """Submit so many jobs of all kinds, or of long ones; their ids."""
        requests = self._long_requests if long else self._requests
        job_ids = [f"job-{self.count + index}" for index in range(number)]
        for job_id, request in zip(job_ids, requests, strict=False):
            enqueue(self._connection, request, Submission(job_id=job_id))
            self.watch(job_id, request)
        return job_ids

    def watch(self, job_id: str, request: GenerationRequest) -> None:
        """Read a job that was submitted, and check it at the end."""
        self._planned.append(PlannedJob(job_id, request, Submission(job_id=job_id), 0.0, None, twice=False))
        self._readers.append(Reader(self._url, job_id, random.Random(self.count)))

    def of_worker(self, part: str = "") -> list[str]:
        """Jobs that a worker with this in its name runs or ran last."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for job in self._planned:
                pipeline.hget(Job.key_for(job.job_id), "worker_name")
            names = pipeline.execute()
        return [job.job_id for job, name in zip(self._planned, names, strict=True) if name and part in name.decode()]

    def in_the_middle(self, part: str = "") -> dict[str, int]:
        """Those of them that have tokens and no end, and how many tokens."""
        streams = {job_id: stream_length(self._connection, job_id) for job_id in self.of_worker(part)}
        return {job_id: tokens for job_id, (tokens, end) in streams.items() if tokens and end is None}

    def lengths(self, job_ids: Iterable[str]) -> dict[str, int]:
        """How many tokens jobs have."""
        return {job_id: stream_length(self._connection, job_id)[0] for job_id in job_ids}

    def workers(self, part: str = "") -> set[str]:
        """The workers with this in their names that hold their lease."""
        leases: Any = self._connection.keys(keys.worker_lease(f"*{part}*"))
        return {lease.decode().removeprefix(keys.worker_lease("")) for lease in leases}

    def wait_for_ends(self) -> None:
        """Wait until every job has ended in RQ's records and every reader has read its end."""
        wait_until(lambda: not unfinished(self._connection, [job.job_id for job in self._planned]), LIMIT)
        wait_until(lambda: all(reader.has_ended for reader in self._readers), LIMIT)

    def check(self) -> Findings:
        """What is wrong: every token of every stream, what readers read, and RQ's records."""
        audit = Audit(self._connection, self._answers)
        audit.check_jobs(self._planned)
        audit.check_readers(self._readers)
        audit.check_books()
        audit.check_counts()
        return audit.findings
