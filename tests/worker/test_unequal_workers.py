"""What becomes of jobs whose worker cannot go on: another goes on if its model is equal, and nothing hangs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from minilab_worker import job_store, outage
from minilab_worker.rq.completions import Completions
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from support.engines import broken_engine
from support.reclaimed_jobs import (
    JOB,
    LEASE,
    StartWorker,
    assert_answered_of,
    assert_answered_once,
    status,
    workers_in_threads,
)
from support.waiting import wait_until

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def start(server: redis.Redis, served: ServedModel) -> Iterator[StartWorker]:
    with workers_in_threads(served) as start:
        yield start


def with_fingerprint(served: ServedModel, fingerprint: str) -> ServedModel:
    """The same model, as a machine that rounds differently would announce it."""
    return replace(served, card=replace(served.card, fingerprint=fingerprint))


def half_written(connection: redis.Redis, served: ServedModel, start: StartWorker) -> str:
    """A job that waits to be continued, with the fingerprint of the model that began it."""
    worker = start()
    job_id = enqueue(connection, JOB, Submission())
    wait_until(lambda: stream_length(connection, job_id)[0] > 5)
    worker.stop()
    worker.stop()
    wait_until(lambda: status(connection, job_id) == "queued")
    wait_until(lambda: not worker.is_serving)
    return job_id


def test_a_half_written_stream_is_left_to_a_worker_with_an_equal_model(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    job_id = half_written(server, served, start)
    tokens = stream_length(server, job_id)[0]
    start(served=with_fingerprint(served, "another"))
    fresh = enqueue(server, JOB, Submission())
    assert_answered_of(server, served, fresh)

    assert stream_length(server, job_id) == (tokens, None)
    assert status(server, job_id) == "queued"
    start()

    assert_answered_once(server, served, job_id)


def test_a_half_written_job_fails_when_no_equal_worker_comes_in_time(
    server: redis.Redis, served: ServedModel, start: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = half_written(server, served, start)
    tokens = stream_length(server, job_id)[0]
    monkeypatch.setattr(job_store, "FINGERPRINT_WAIT", 0.0)

    start(served=with_fingerprint(served, "another"))

    wait_until(lambda: status(server, job_id) == "failed")
    seen, end = stream_length(server, job_id)
    assert seen == tokens
    assert end is not None
    assert f"no worker of the model {served.card.fingerprint}, which began it" in (end.error or "")


def test_an_engine_that_fails_ends_its_worker_and_another_goes_on(
    server: redis.Redis, served: ServedModel, start: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = enqueue(server, JOB, Submission())
    settings = WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), 4, lease=LEASE)
    broken = Worker(settings, served, broken_engine)

    with pytest.raises(RuntimeError, match="the engine is broken"):
        broken.serve()

    assert server.get(keys.worker_lease(broken.name)) is None
    start()
    assert_answered_once(server, served, job_id)


def test_a_worker_whose_last_record_meets_no_redis_gives_up_and_does_not_hang(
    server: redis.Redis, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(server, GenerationRequest((1,), 2), Submission())
    monkeypatch.setattr(outage, "REDIS_LIMIT", 0.5)
    worker = Worker(WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), 4, lease=LEASE), served)
    monkeypatch.setattr(Completions, "record", lose_connection)

    with pytest.raises(RedisUnavailableError, match="Redis is unavailable"):
        worker.serve()


def lose_connection(completions: object, ends: object) -> None:
    raise redis.ConnectionError("gone")
