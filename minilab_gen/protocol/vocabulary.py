"""Waiting jobs that hold ids which a model does not know: they were made for another. It must not end any of them."""

from __future__ import annotations

from typing import Any, Final

import redis
from rq.job import Job

from minilab_gen.errors import RequestError, UnknownJobError
from minilab_gen.protocol.jobs import queue_of, request_of, restored

_LOOKED_AT: Final = 20
"""Jobs of a queue that are read, the first to be claimed: records may be large, and one tells enough."""


def jobs_beyond(connection: redis.Redis, queue: str, vocab_size: int) -> list[str]:
    """The ids of jobs among the first of a queue of which a prompt goes beyond so many ids."""
    entries: Any = connection.lrange(queue_of(connection, queue).key, 0, _LOOKED_AT - 1)
    job_ids = [entry.decode() for entry in entries if entry.isascii()]
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hgetall(Job.key_for(job_id))
        records = pipeline.execute(raise_on_error=False)
    return [
        job_id
        for job_id, record in zip(job_ids, records, strict=True)
        if isinstance(record, dict) and _largest_id(connection, job_id, record) >= vocab_size
    ]


def _largest_id(connection: redis.Redis, job_id: str, record: Any) -> int:
    try:
        return max(request_of(restored(connection, job_id, record)).prompt)
    except (RequestError, UnknownJobError):  # it fails for that, whichever worker claims it
        return -1
