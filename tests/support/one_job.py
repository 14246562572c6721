"""Job x in Redis, as its submitter, its worker and RQ leave it. It must not hold a test."""

from __future__ import annotations

import json
from typing import Any

import redis
from rq import Queue
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.results import Result

from minilab_gen.protocol import jobs, keys
from minilab_gen.protocol.events import EndEvent, EndReason
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.submission import Submission
from minilab_gen.request import GenerationRequest, SamplingSettings

REQUEST = GenerationRequest((5, 12, 7), 4, SamplingSettings(0.8, top_k=20, top_p=0.9, seed=11), stop_ids=(2,))

X = Submission(job_id="x")


def queue_of(connection: redis.Redis, priority: keys.Priority = "normal") -> Queue:
    return jobs.queue_of(connection, keys.queue_name(keys.DEFAULT_MODEL, priority))


def start(connection: redis.Redis, worker: str = "minilab-a") -> Execution:
    """What a worker does first with job x."""
    queue_of(connection).remove("x")
    job = fetch(connection, "x")
    with connection.pipeline() as pipeline:
        execution = Execution.create(job, 60, pipeline=pipeline, worker_name=worker)
        job.prepare_for_execution(worker, pipeline=pipeline)
        pipeline.execute()
    return execution


def end(connection: redis.Redis, tokens: int, reason: EndReason = "length", **details: Any) -> EndEvent:
    """The terminal entry of job x, then RQ's record."""
    last = EndEvent(reason, tokens, 3, **details)
    publish(connection, [("x", last)], running_ttl=600)
    job = fetch(connection, "x")
    with connection.pipeline() as pipeline:
        for execution in job.get_executions():
            execution.delete(job, pipeline=pipeline)
        pipeline.execute()
    if last.succeeded:
        job.set_status(JobStatus.FINISHED)
    elif reason == "cancelled":
        job.cancel()
    else:
        fail(connection, details.get("error", reason))
    return last


def fail(connection: redis.Redis, why: str) -> None:
    """RQ's record of a failure."""
    job = fetch(connection, "x")
    job.set_status(JobStatus.FAILED)
    Result.create_failure(job, 600, f"Traceback (most recent call last):\n  ...\n{why}\n")


def force(connection: redis.Redis, data: object) -> Job:
    """A job that another program put into the queue under the id x."""
    queue_of(connection).enqueue_call(keys.TASK, args=({},), job_id="x")
    connection.hset("rq:job:x", "data", json.dumps(data).encode() if not isinstance(data, bytes) else data)
    return fetch(connection, "x")


def everything(connection: redis.Redis) -> dict[Any, Any]:
    """Every key with what it holds."""
    return {key: connection.dump(key) for key in connection.keys("*")}
