"""Cancels the jobs that wait for a model, a batch at a time. A job that a worker has claimed is not touched.

A script takes a job from its queue and writes its terminal entry, both or neither: a process that is killed
in the middle of thousands leaves none that stands in no queue and has no end. RQ's records follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry
from rq.serializers import JSONSerializer

from minilab_gen.errors import RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.connection import checked_answers
from minilab_gen.protocol.endings import prompt_length
from minilab_gen.protocol.events import EndEvent, decode_entry, entry_id
from minilab_gen.protocol.jobs import queue_of, restored
from minilab_gen.protocol.streams import REFUSED_REPEAT, SEAL

BATCH: Final = 100
"""Jobs in one round trip: few enough not to hold up the workers, whose commands wait meanwhile."""

_TAKE_SCRIPT: Final = f"""
if not redis.call('LPOS', KEYS[2], ARGV[3]) then return false end
{SEAL}
redis.call('LREM', KEYS[2], 1, ARGV[3])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return entry
"""
"""Ends a job that waits. KEYS: its stream, its queue, RQ's record of it. ARGV[3]: its id."""


def count_waiting(connection: redis.Redis, model: str) -> int:
    """How many jobs wait for a model, at all priorities."""
    return sum(connection.llen(queue_of(connection, name).key) for name in keys.queue_names(model))


def cancel_waiting(connection: redis.Redis, model: str) -> Iterator[int]:
    """Cancel the jobs that wait for a model now, oldest first; yields how many after each batch."""
    for name in keys.queue_names(model):
        queue = queue_of(connection, name)
        left, passed = connection.llen(queue.key), 0  # not those that come meanwhile, or there might be no end to them
        while left > 0:
            job_ids: Any = connection.lrange(queue.key, passed, passed + min(left, BATCH) - 1)
            if not job_ids:
                break
            cancelled = _cancel(connection, queue, [entry.decode() for entry in job_ids if entry.isascii()])
            left -= len(job_ids)
            passed += len(job_ids) - cancelled
            yield cancelled


def _cancel(connection: redis.Redis, queue: Queue, job_ids: list[str]) -> int:
    """End those of these jobs that still wait."""
    ends = _ends(connection, job_ids)
    with connection.pipeline(transaction=False) as pipeline:
        for job, end in ends:
            words = [part for pair in end.to_fields().items() for part in pair]
            named = (keys.token_stream(job.id), queue.key, job.key)
            pipeline.eval(_TAKE_SCRIPT, 3, *named, entry_id(end.number), str(keys.RETENTION), job.id, *words)
        answers = pipeline.execute(raise_on_error=False)
    taken = [job for (job, _), answer in zip(ends, answers, strict=True) if _is_taken(answer)]
    now = server_time(connection)
    registry = CanceledJobRegistry(queue.name, connection, serializer=JSONSerializer)
    with connection.pipeline(transaction=True) as pipeline:
        for job in taken:
            job.set_status(JobStatus.CANCELED, pipeline=pipeline)
            registry.add(job, pipeline=pipeline)
            pipeline.zadd(registry.key, {job.id: now}, xx=True)  # RQ takes this machine's time
        pipeline.execute()
    return len(taken)


def _ends(connection: redis.Redis, job_ids: list[str]) -> list[tuple[Job, EndEvent]]:
    """The jobs, without those that have expired or ended, and the terminal entry of each."""
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hgetall(Job.key_for(job_id))
            pipeline.xrevrange(keys.token_stream(job_id), count=1)
        answers = checked_answers(pipeline.execute(raise_on_error=False))
    ends = []
    for job_id, record, last in zip(job_ids, answers[::2], answers[1::2], strict=True):
        try:
            job = restored(connection, job_id, record)
            event = decode_entry(last[0]) if last else None
        except (UnknownJobError, RequestError, StreamError):
            continue  # the worker that claims it ends it
        if not isinstance(event, EndEvent):
            ends.append((job, EndEvent("cancelled", event.number if event else 0, prompt_length(job))))
    return ends


def _is_taken(answer: Any) -> bool:
    """Whether the script found the job waiting. Raises what went wrong."""
    if isinstance(answer, Exception) and REFUSED_REPEAT not in str(answer):
        raise answer
    return isinstance(answer, bytes)
