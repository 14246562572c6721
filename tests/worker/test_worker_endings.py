"""Jobs that a worker on a real server does not run to their end: cancelled, late, bad or forced into the queue."""

from __future__ import annotations

import pytest
import redis
from minilab_worker.serving import ServedModel
from rq import Queue
from rq.command import send_stop_job_command
from rq.serializers import JSONSerializer
from support.engines import slow_engine, slower_engine, very_slow_engine
from support.references import reference_ids
from support.served_jobs import LONG, StartWorker, base_queue, status, wait_for_end
from support.waiting import wait_until

from minilab_gen import EndEvent
from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest


def test_cancelling_a_running_job_stops_it_and_releases_its_slot(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    worker = start_worker(max_batch=1, engine=slow_engine)
    job_id = enqueue(server, LONG, Submission())
    events = tail(server, job_id)
    for _ in range(5):
        next(events)

    assert endings.cancel(server, job_id) == "started"
    seen_at_cancel = len(published_tokens(server, job_id)[0])
    *_, end = events

    assert isinstance(end, EndEvent)
    assert end.reason == "cancelled"
    assert end.tokens <= seen_at_cancel + 2
    wait_until(lambda: worker.done == 1)
    assert status(server, job_id) == "canceled"
    assert jobs.view(server, job_id).state == "cancelled"
    follower = enqueue(server, GenerationRequest((7,), 3), Submission())
    assert wait_for_end(server, follower).reason == "length"


def test_a_waiting_job_that_is_cancelled_never_starts(server: redis.Redis, start_worker: StartWorker) -> None:
    job_id = enqueue(server, LONG, Submission())

    assert endings.cancel(server, job_id) == "queued"

    assert wait_for_end(server, job_id) == EndEvent("cancelled", 0, prompt_tokens=2)
    assert status(server, job_id) == "canceled"
    assert base_queue(server).count == 0


def test_a_cancel_between_claim_and_start_gives_no_token(server: redis.Redis, start_worker: StartWorker) -> None:
    job_id = enqueue(server, LONG, Submission())
    server.set(keys.cancel_flag(job_id), 1)  # as cancel does, when the job has just left the queue
    worker = start_worker()

    assert wait_for_end(server, job_id).tokens == 0
    wait_until(lambda: worker.done == 1)
    assert status(server, job_id) == "canceled"


def test_rqs_stop_command_cancels_a_job(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker(engine=slow_engine)
    job_id = enqueue(server, LONG, Submission())
    next(tail(server, job_id))

    send_stop_job_command(server, job_id, serializer=JSONSerializer)

    assert wait_for_end(server, job_id).reason == "cancelled"
    wait_until(lambda: worker.done == 1)
    assert status(server, job_id) == "canceled"


def test_rqs_own_cancel_stops_a_running_job(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker(engine=very_slow_engine, lease=3)
    job_id = enqueue(server, LONG, Submission())
    next(tail(server, job_id))

    jobs.fetch(server, job_id).cancel()  # which the worker sees when it renews its lease

    assert wait_for_end(server, job_id).reason == "cancelled"
    wait_until(lambda: worker.done == 1)
    assert status(server, job_id) == "canceled"


def test_a_job_past_its_timeout_ends_alone(server: redis.Redis, served: ServedModel, start_worker: StartWorker) -> None:
    worker = start_worker(engine=slower_engine)
    patient = enqueue(server, LONG, Submission())
    hasty = enqueue(server, GenerationRequest((9,), 60), Submission(timeout=1))  # 60 steps take longer than that

    end = wait_for_end(server, hasty)

    assert (end.reason, end.phase) == ("timeout", "running")
    assert 0 < end.tokens < 60
    assert wait_for_end(server, patient).succeeded
    answer = result(server, patient)
    assert answer is not None
    assert list(answer.ids) == reference_ids(served, LONG)
    wait_until(lambda: worker.done == 2)
    assert status(server, hasty) == "failed"


def test_a_job_that_waited_longer_than_its_ttl_is_not_started(server: redis.Redis, start_worker: StartWorker) -> None:
    """The worker finds that; a reader would, too, but there is none."""
    job_id = enqueue(server, LONG, Submission(ttl=1))
    late = server.time()[0] + 2
    wait_until(lambda: server.time()[0] >= late)

    worker = start_worker()

    wait_until(lambda: worker.done == 1)
    _, end = published_tokens(server, job_id)
    assert end == EndEvent("timeout", 0, prompt_tokens=2, phase="waiting")
    assert status(server, job_id) == "failed"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (({"prompt": []},), "prompt must hold at least 1 id"),
        (({"prompt": [2048]},), "prompt ids must be 0 to 2047, got 2048 at position 0"),
        (({"prompt": [1] * 64},), "prompt must hold 1 to 63 ids, got 64"),
        (({"prompt": [1], "temperature": -1},), "temperature must be 0 or more"),
        (({"prompt": [1], "stop_ids": [9999]},), "stop_ids must be below 2048"),
        (("text",), "a request must be an object"),
        ((), "a job must have one argument"),
    ],
)
def test_a_bad_request_forced_into_the_queue_fails_alone(
    server: redis.Redis, start_worker: StartWorker, arguments: tuple[object, ...], rule: str
) -> None:
    worker = start_worker()
    bad = base_queue(server).enqueue_call(keys.TASK, args=arguments)
    good = enqueue(server, LONG, Submission())

    end = wait_for_end(server, bad.id)

    assert end.reason == "error"
    assert rule in (end.error or "")
    assert wait_for_end(server, good).succeeded
    wait_until(lambda: worker.done == 2)
    assert status(server, bad.id) == "failed"


def test_a_job_that_names_another_function_is_failed_unread(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    foreign = base_queue(server).enqueue_call("os.system", args=("touch /tmp/minilab-was-here",))

    end = wait_for_end(server, foreign.id)

    assert end.error == f"a job must name {keys.TASK}, got os.system"
    wait_until(lambda: worker.done == 1)
    assert status(server, foreign.id) == "failed"


def test_a_pickled_job_is_failed_and_never_unpickled(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    pickled = Queue(keys.queue_name("base"), connection=server).enqueue_call(keys.TASK, args=({"prompt": [1]},))

    end = wait_for_end(server, pickled.id)

    assert end.reason == "error"
    assert "JSON" in (end.error or "")
    wait_until(lambda: worker.done == 1)
