"""What tests of ``minilab-client verify`` share: finished jobs, and streams changed by hand. It holds no test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
from minilab_worker.worker import Worker

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import Event, TokenEvent
from minilab_gen.protocol.jobs import fetch, recorded_state
from minilab_gen.protocol.streams import publish, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.verification import MARK
from minilab_gen.request import GenerationRequest, SamplingSettings
from support.waiting import wait_until

StartWorker = Callable[..., Worker]

REQUEST = GenerationRequest((5, 6, 7), 40, SamplingSettings(temperature=0.8, seed=11))


def finished(server: redis.Redis, requests: Sequence[GenerationRequest]) -> list[str]:
    """Jobs that a worker has run."""
    job_ids = [enqueue(server, request, Submission()) for request in requests]
    for job_id in job_ids:
        wait_until(lambda job_id=job_id: recorded_state(fetch(server, job_id)) == "finished")  # type: ignore[misc]
    return job_ids


def rewrite(server: redis.Redis, job_id: str, stream: Sequence[Event]) -> None:
    """Put another stream in the place of a job's own."""
    server.delete(keys.token_stream(job_id))
    publish(server, [(job_id, event) for event in stream], running_ttl=600)


def alter(server: redis.Redis, job_id: str, number: int, **changes: Any) -> TokenEvent:
    """Change one token of an ended job by hand; what it was before."""
    stream = read_stream(server, job_id)
    before = stream[number - 1]
    assert isinstance(before, TokenEvent)
    stream[number - 1] = before._replace(**changes)
    rewrite(server, job_id, stream)
    return before


Books = dict[str, object]


def books(server: redis.Redis) -> Books:
    """All keys but those in which workers tell of themselves, with the members of RQ's lists, sets and registries."""
    of_workers = ("rq:worker", "minilab:worker:", "minilab:stats:")
    found = {key.decode() for key in server.scan_iter(count=1000)}
    return {key: members(server, key) for key in found if not key.startswith(of_workers)}


def members(server: redis.Redis, key: str) -> object:
    kind = server.type(key)
    if kind == b"zset":
        return sorted(server.zrange(key, 0, -1))
    if kind == b"set":
        return server.smembers(key)
    return server.lrange(key, 0, -1) if kind == b"list" else kind


def nothing_is_left(server: redis.Redis) -> bool:
    return MARK not in repr(books(server))
