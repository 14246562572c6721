"""Deleting a job: hidden at once, and gone as soon as no worker writes to it any more.

By commands that a client's user may use: a key whose time is up is deleted by Redis.
"""

from __future__ import annotations

import redis
from rq.job import Job
from rq.results import Result

from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch, recorded_state
from minilab_gen.protocol.streams import end_of


def hide(connection: redis.Redis, job_id: str) -> None:
    """Mark a job as deleted."""
    record = Job.key_for(keys.check_job_id(job_id))
    with connection.pipeline(transaction=True) as pipeline:
        pipeline.hset(record, keys.HIDDEN_FIELD, 1)
        pipeline.expire(record, keys.RETENTION)  # the record may have expired before, and this have made another
        pipeline.execute()


def is_hidden(connection: redis.Redis, job_id: str) -> bool:
    return bool(connection.hget(Job.key_for(keys.check_job_id(job_id)), keys.HIDDEN_FIELD))


def erase_ended(connection: redis.Redis, job_id: str) -> bool:
    """Delete what stands about a job that has ended; False for one to which a worker may still write.

    Raises UnknownJobError.
    """
    job = fetch(connection, job_id)
    if recorded_state(job) in ("queued", "started") or end_of(connection, job_id) is None:
        return False
    with connection.pipeline(transaction=True) as pipeline:
        for key in (keys.token_stream(job_id), keys.prompt_logprobs(job_id), Result.get_key(job_id), job.key):
            pipeline.expire(key, 0)
        pipeline.execute()
    return True
