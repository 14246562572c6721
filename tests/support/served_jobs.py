"""What tests of a worker on a real server ask of its jobs. It must not hold a test."""

from __future__ import annotations

from collections.abc import Callable

import redis
from minilab_worker.worker import Worker
from rq import Queue
from rq.serializers import JSONSerializer

from minilab_gen import EndEvent
from minilab_gen.protocol import jobs, keys
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest

StartWorker = Callable[..., Worker]


def wait_for_end(connection: redis.Redis, job_id: str) -> EndEvent:
    *_, end = tail(connection, job_id)
    assert isinstance(end, EndEvent)
    return end


def status(connection: redis.Redis, job_id: str) -> str:
    return str(jobs.fetch(connection, job_id).get_status().value)


def base_queue(connection: redis.Redis) -> Queue:
    return Queue(keys.queue_name("base"), connection=connection, serializer=JSONSerializer)


LONG = GenerationRequest((5, 6), max_new_tokens=60)
