"""What a worker makes of strange records, in this process: no job is lost, or run or ended twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from minilab_worker.serving import ServedModel
from rq import Callback
from rq.webhook import Webhook
from support.reclaimed_jobs import (
    JOB,
    StartWorker,
    assert_answered_once,
    only_started,
    queue_of,
    started_jobs,
    status,
    workers_in_threads,
)
from support.references import reference_ids
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import publish, published_tokens, stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def start(server: redis.Redis, served: ServedModel) -> Iterator[StartWorker]:
    with workers_in_threads(served) as start:
        yield start


def test_an_id_that_is_queued_twice_runs_once(server: redis.Redis, served: ServedModel, start: StartWorker) -> None:
    job_id = enqueue(server, JOB, Submission())
    server.rpush(queue_of(server).key, job_id)

    start()

    wait_until(lambda: not server.exists(queue_of(server).key, queue_of(server).intermediate_queue_key))
    assert_answered_once(server, served, job_id)


def test_an_id_that_is_queued_again_while_it_runs_runs_once(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    start()
    job_id = enqueue(server, JOB, Submission())
    wait_until(lambda: stream_length(server, job_id)[0] > 5)

    server.rpush(queue_of(server).key, job_id)

    assert_answered_once(server, served, job_id)


def test_a_worker_that_claims_its_own_lost_job_again_goes_on(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    """Another worker found the lease expired and had no free slot itself."""
    start()
    job_id = enqueue(server, JOB, Submission())
    wait_until(lambda: stream_length(server, job_id)[0] > 5)

    assert started_jobs(server).requeue(only_started(server), if_expired=False)

    assert_answered_once(server, served, job_id)


def test_an_idle_worker_outlives_the_loss_of_its_last_job(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    worker = start()
    job_id = enqueue(server, JOB, Submission())
    wait_until(lambda: stream_length(server, job_id)[0] > 5)
    job = only_started(server)
    assert started_jobs(server).requeue(job, if_expired=False)
    server.lrem(queue_of(server).key, 1, job_id)  # as if another worker had claimed it
    worker.recheck_ownership()

    wait_until(lambda: worker.used == 0)
    other = enqueue(server, JOB, Submission())

    wait_until(lambda: status(server, other) == "finished")
    assert worker.is_serving


def test_a_worker_that_lost_a_job_cannot_end_it(server: redis.Redis, start: StartWorker) -> None:
    """It stood still, and wakes with a cancel, or with a job whose time ran out meanwhile."""
    worker = start()
    job_id = enqueue(server, JOB, Submission())
    wait_until(lambda: stream_length(server, job_id)[0] > 5)
    job = only_started(server)
    server.zrem(f"rq:executions:{job_id}", job.execution_id)  # the part of a takeover that counts

    worker.cancel(job_id)
    wait_until(lambda: worker.used == 0)

    assert stream_length(server, job_id)[1] is None
    assert worker.is_serving


def test_a_cancel_is_written_behind_the_tokens_that_another_worker_added(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    """Two workers write one stream while one of them does not know yet that it has lost the job."""
    start()
    tokens = reference_ids(served, JOB)
    job_id = enqueue(server, JOB, Submission())
    wait_until(lambda: stream_length(server, job_id)[0] > 5)
    ahead = stream_length(server, job_id)[0] + 20
    publish(server, [(job_id, TokenEvent(n, tokens[n - 1], "")) for n in range(1, ahead + 1)], running_ttl=60)

    cancel(server, job_id)

    wait_until(lambda: status(server, job_id) == "canceled")
    seen, end = published_tokens(server, job_id)
    assert [token.token_id for token in seen] == tokens[: len(seen)]
    assert end == EndEvent("cancelled", len(seen), 2)
    assert len(seen) >= ahead


def test_an_end_that_another_wrote_is_adopted(server: redis.Redis, served: ServedModel, start: StartWorker) -> None:
    worker = start()
    tokens = reference_ids(served, JOB)
    job_id = enqueue(server, JOB, Submission())
    wait_until(lambda: stream_length(server, job_id)[0] > 5)
    number = stream_length(server, job_id)[0] + 20
    ahead = [(job_id, TokenEvent(n, tokens[n - 1], "")) for n in range(1, number + 1)]
    publish(server, [*ahead, (job_id, EndEvent("cancelled", number, 2))], running_ttl=60)

    wait_until(lambda: worker.done == 1)

    assert published_tokens(server, job_id)[1] == EndEvent("cancelled", number, 2)
    assert status(server, job_id) == "canceled"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda connection, key: connection.xadd(key, {"hello": "world"}, id="7-3"),
        lambda connection, key: connection.xadd(key, {"id": "1", "text": ""}, id="9-0"),
        lambda connection, key: connection.set(key, "no stream"),
    ],
    ids=["alien entry", "gap", "no stream"],
)
def test_a_stream_that_is_not_whole_is_written_anew(
    server: redis.Redis, served: ServedModel, start: StartWorker, spoil: Callable[[redis.Redis, str], object]
) -> None:
    job_id = enqueue(server, JOB, Submission())
    spoil(server, keys.token_stream(job_id))

    start()

    assert_answered_once(server, served, job_id)


def test_a_record_that_cannot_be_read_fails_its_job_alone(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    broken, good = enqueue(server, JOB, Submission()), enqueue(server, JOB, Submission())
    server.hset(f"rq:job:{broken}", "created_at", "yesterday")

    start()

    assert_answered_once(server, served, good)
    _, end = published_tokens(server, broken)
    assert end is not None
    assert end.error == "the job's record cannot be read"
    assert server.ttl(f"rq:job:{broken}") > 0


def test_a_job_that_rq_cancelled_on_its_way_to_the_worker_is_not_started(
    server: redis.Redis, start: StartWorker
) -> None:
    job_id = enqueue(server, JOB, Submission())
    queue = queue_of(server)
    server.lmove(queue.key, queue.intermediate_queue_key)
    fetch(server, job_id).cancel()
    server.lmove(queue.intermediate_queue_key, queue.key)

    start()

    wait_until(lambda: stream_length(server, job_id)[1] is not None)
    assert stream_length(server, job_id)[1] == EndEvent("cancelled", 0, 2)
    assert status(server, job_id) == "canceled"
    assert fetch(server, job_id).started_at is None


def test_a_job_that_brings_a_callback_is_failed_and_nothing_is_called(
    server: redis.Redis, served: ServedModel, start: StartWorker
) -> None:
    payload = JOB.to_payload()
    jobs = [
        queue_of(server).enqueue_call(keys.TASK, args=(payload,), on_success=Callback(f"{__name__}.leave_a_mark")),
        queue_of(server).enqueue_call(keys.TASK, args=(payload,), on_failure=Callback(f"{__name__}.leave_a_mark")),
        queue_of(server).enqueue_call(keys.TASK, args=(payload,), webhooks=[Webhook("http://127.0.0.1:9/", "failed")]),
    ]
    good = enqueue(server, JOB, Submission())

    start()

    assert_answered_once(server, served, good)
    for job in jobs:
        end = stream_length(server, job.id)[1]
        assert end is not None
        assert end.error == "a job must bring no callback and no webhook: nothing but generate is run"
        wait_until(lambda job=job: status(server, job.id) == "failed")  # type: ignore[misc]
    assert marks == []


marks: list[object] = []


def leave_a_mark(*arguments: object) -> None:
    """What a job brings along that means harm."""
    marks.append(arguments)


@pytest.mark.parametrize("overwritten", ["rq:executions:{0}", "minilab:expired-leases:{0}"])
def test_a_key_of_another_type_does_not_end_the_worker(
    server: redis.Redis, start: StartWorker, overwritten: str
) -> None:
    odd = enqueue(server, GenerationRequest((5, 6), 4), Submission())
    server.hset(overwritten.format(odd), "not", "ours")
    start()

    good = enqueue(server, GenerationRequest((5, 6), 4), Submission())

    *_, end = tail(server, good)
    assert isinstance(end, EndEvent)
    assert end.succeeded


def test_a_finished_job_that_is_queued_again_without_its_stream_is_dropped(
    server: redis.Redis, start: StartWorker
) -> None:
    job_id = enqueue(server, GenerationRequest((5, 6), 4), Submission())
    server.hset(f"rq:job:{job_id}", "status", "finished")
    start()

    good = enqueue(server, GenerationRequest((5, 6), 4), Submission())

    *_, end = tail(server, good)
    assert isinstance(end, EndEvent)
    assert end.succeeded
    assert not server.exists("rq:queue:minilab.base", "rq:queue:minilab.base:intermediate")
