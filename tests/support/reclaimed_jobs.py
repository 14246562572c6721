"""What tests of lost and reclaimed jobs share: workers in threads, and what they have recorded. It holds no test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import redis
from minilab_worker.job_store import StartedJob
from minilab_worker.rq.started_jobs import StartedJobs
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.request import GenerationRequest
from support.engines import slow_engine
from support.references import reference_ids
from support.waiting import wait_until

JOB = GenerationRequest((5, 6), max_new_tokens=60)
LEASE = 3
StartWorker = Callable[..., Worker]


@contextmanager
def workers_in_threads(served: ServedModel) -> Iterator[StartWorker]:
    """Start workers in threads, their steps some milliseconds long; all are stopped at the end."""
    with ExitStack() as stack:

        def start(url: str | None = None, served: ServedModel = served) -> Worker:
            queues = tuple(keys.queue_names(keys.DEFAULT_MODEL))
            worker = Worker(WorkerSettings(queues, 4, redis_url=url, lease=LEASE), served, slow_engine)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            return worker

        yield start


def queue_of(connection: redis.Redis) -> Queue:
    return Queue(keys.queue_name(keys.DEFAULT_MODEL), connection=connection, serializer=JSONSerializer)


def status(connection: redis.Redis, job_id: str) -> str:
    return str(fetch(connection, job_id).get_status().value)


def results(connection: redis.Redis, job_id: str) -> int:
    return len(Job.fetch(job_id, connection, serializer=JSONSerializer).results())


def started_jobs(connection: redis.Redis) -> StartedJobs:
    return StartedJobs(connection, [queue_of(connection)])


def only_started(connection: redis.Redis) -> StartedJob:
    (job,) = started_jobs(connection).all()
    return job


def assert_answered_once(connection: redis.Redis, served: ServedModel, job_id: str) -> None:
    assert_answered_of(connection, served, job_id)
    wait_until(lambda: not connection.keys("rq:execution*"))
    queue = queue_of(connection)
    assert not connection.exists(queue.key, queue.intermediate_queue_key, queue.started_job_registry.key)


def assert_answered_of(connection: redis.Redis, served: ServedModel, job_id: str) -> None:
    wait_until(lambda: status(connection, job_id) == "finished")
    tokens, end = published_tokens(connection, job_id)
    assert [token.token_id for token in tokens] == reference_ids(served, JOB)
    assert end is not None
    assert end.succeeded
    assert results(connection, job_id) == 1
