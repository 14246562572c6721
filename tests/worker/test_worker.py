"""The worker on a real server: what a client reads is what the reference generates, and RQ's records agree."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from rq import Queue
from rq import Worker as RqWorker
from rq.command import send_stop_job_command
from rq.job import Job
from rq.serializers import JSONSerializer
from support.engines import slow_engine, very_slow_engine
from support.waiting import wait_until

from minilab_gen import EndEvent
from minilab_gen.generate import generate
from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest, SamplingSettings

StartWorker = Callable[..., Worker]


def random_request(dice: random.Random, longest_prompt: int = 40) -> GenerationRequest:
    settings = SamplingSettings(
        temperature=dice.choice([0.0, 0.3, 0.8, 1.5]),
        top_k=dice.choice([None, None, 1, 5, 50]),
        top_p=dice.choice([None, None, 0.5, 0.9, 1.0]),
        seed=dice.randrange(1000),
    )
    prompt = tuple(dice.randrange(2048) for _ in range(dice.randint(1, longest_prompt)))
    return GenerationRequest(prompt, dice.randint(1, 40), settings, stop_ids=(dice.randrange(2048),))


def reference_tokens(served: ServedModel, request: GenerationRequest) -> list[int]:
    steps = generate(served.model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids)
    return [step.token_id for step in steps]


def wait_for_end(connection: redis.Redis, job_id: str) -> EndEvent:
    *_, end = tail(connection, job_id)
    assert isinstance(end, EndEvent)
    return end


def status(connection: redis.Redis, job_id: str) -> str:
    return str(jobs.fetch(connection, job_id).get_status().value)


def count_in(registry: Any) -> int:
    return len(registry.get_job_ids())


def base_queue(connection: redis.Redis) -> Queue:
    return Queue(keys.queue_name("base"), connection=connection, serializer=JSONSerializer)


LONG = GenerationRequest((5, 6), max_new_tokens=60)


def test_200_random_jobs_give_the_tokens_of_the_reference(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    dice = random.Random(1)
    requests = [random_request(dice) for _ in range(200)]
    start_worker(max_batch=16)

    submitted = [(enqueue(server, request, Submission()), request) for request in requests]

    for job_id, request in submitted:
        end = wait_for_end(server, job_id)
        answer = result(server, job_id)
        assert answer is not None
        assert list(answer.ids) == reference_tokens(served, request)
        assert end.tokens == len(answer.ids)
        assert end.reason in ("stop", "length", "context")


def test_rq_counts_every_job_as_finished_and_none_as_started(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    job_ids = [enqueue(server, LONG, Submission()) for _ in range(20)]

    wait_until(lambda: worker.done == len(job_ids))

    queue = base_queue(server)
    assert (queue.count, count_in(queue.started_job_registry), count_in(queue.failed_job_registry)) == (0, 0, 0)
    assert count_in(queue.finished_job_registry) == len(job_ids)
    assert not server.exists(queue.intermediate_queue_key)
    (seen,) = RqWorker.all(connection=server)
    assert (seen.name, seen.successful_job_count) == (worker.name, len(job_ids))
    value = jobs.fetch(server, job_ids[0]).return_value()
    assert value is not None
    answer = result(server, job_ids[0])
    assert answer is not None
    assert (value["ids"], value["text"], value["end"]) == (list(answer.ids), answer.text, answer.end.reason)


def test_stream_and_result_expire_together(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: worker.done == 1)

    for key in (keys.token_stream(job_id), f"rq:job:{job_id}", f"rq:results:{job_id}"):
        assert keys.RETENTION - 60 < server.ttl(key) <= keys.RETENTION


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


def cut_publisher_off(connection: redis.Redis) -> None:
    """Close the connection on which the worker publishes, known by its last command."""
    for client in connection.client_list():
        if client["cmd"] == "mget":
            connection.client_kill_filter(_id=client["id"])


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
    worker = start_worker(engine=very_slow_engine)
    patient = enqueue(server, LONG, Submission())
    hasty = enqueue(server, GenerationRequest((9,), 60), Submission(timeout=1))  # 60 steps take longer than that

    end = wait_for_end(server, hasty)

    assert (end.reason, end.phase) == ("timeout", "running")
    assert 0 < end.tokens < 30
    assert wait_for_end(server, patient).succeeded
    answer = result(server, patient)
    assert answer is not None
    assert list(answer.ids) == reference_tokens(served, LONG)
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


def test_high_priority_is_claimed_first(server: redis.Redis, start_worker: StartWorker) -> None:
    order = [enqueue(server, GenerationRequest((1,), 1), Submission(priority=p)) for p in ("low", "normal", "high")]
    worker = start_worker(max_batch=1)

    wait_until(lambda: worker.done == 3)

    started = [jobs.fetch(server, job_id).started_at for job_id in order]
    assert started == sorted(started, reverse=True)  # type: ignore[type-var]


def test_a_lost_connection_loses_no_token_and_doubles_none(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker(engine=slow_engine)
    job_id = enqueue(server, LONG, Submission())
    events = tail(server, job_id)
    for _ in range(10):
        next(events)

    cut_publisher_off(server)

    rest = list(events)
    assert [event.number for event in rest] == list(range(11, rest[-1].number + 1))
    tokens = [event.token_id for event in published_tokens(server, job_id)[0]]
    assert tokens == reference_tokens(served, LONG)


def test_a_stream_that_lost_its_last_second_is_made_whole(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    """Redis may come back with a log that is a second old."""
    worker = start_worker(engine=slow_engine)
    job_id = enqueue(server, LONG, Submission())
    events = tail(server, job_id)
    for _ in range(10):
        next(events)

    server.delete(keys.token_stream(job_id))
    cut_publisher_off(server)
    wait_until(lambda: worker.done == 1)

    assert [event.token_id for event in published_tokens(server, job_id)[0]] == reference_tokens(served, LONG)


def test_an_ordinary_rq_worker_runs_the_same_jobs(
    server: redis.Redis, server_url: str, served: ServedModel, small_checkpoint: Any
) -> None:
    dice = random.Random(2)
    requests = [random_request(dice) for _ in range(5)]
    job_ids = [enqueue(server, request, Submission()) for request in requests]
    cancelled = enqueue(server, LONG, Submission())
    server.set(keys.cancel_flag(cancelled), 1)
    broken = base_queue(server).enqueue_call(keys.TASK, args=({"prompt": []},)).id

    subprocess.run(
        [
            sys.executable,
            "-m",
            "rq.cli",
            "worker",
            "--burst",
            "--url",
            server_url,
            "--worker-class",
            "rq.SimpleWorker",
            "--serializer",
            "rq.serializers.JSONSerializer",
            keys.queue_name("base"),
        ],
        env={"MINILAB_CHECKPOINT": str(small_checkpoint), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        timeout=120,
    )

    for job_id, request in zip(job_ids, requests, strict=True):
        answer = result(server, job_id)
        assert answer is not None
        assert list(answer.ids) == reference_tokens(served, request)
        assert status(server, job_id) == "finished"
    assert wait_for_end(server, cancelled).reason == "cancelled"
    assert jobs.view(server, cancelled).state == "cancelled"
    assert wait_for_end(server, broken).reason == "error"


def test_300_mixed_jobs_leave_nothing_behind(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    dice = random.Random(3)
    worker = start_worker(max_batch=8)
    good: dict[str, GenerationRequest] = {}
    for number in range(300):
        if number % 10 == 3:
            base_queue(server).enqueue_call(keys.TASK, args=({"prompt": [-1]},))
            continue
        request = random_request(dice)
        job_id = enqueue(server, request, Submission())
        if number % 10 == 7:
            endings.cancel(server, job_id)
        else:
            good[job_id] = request

    for job_id, request in good.items():
        assert wait_for_end(server, job_id).succeeded
        answer = result(server, job_id)
        assert answer is not None
        assert list(answer.ids) == reference_tokens(served, request)
    wait_until(lambda: worker.used == 0)
    worker.check_idle()
    queue = base_queue(server)
    assert count_in(queue.started_job_registry) == 0
    assert count_in(queue.finished_job_registry) == len(good)


def test_no_key_of_ours_is_without_an_expiry(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker(engine=slow_engine)
    done = enqueue(server, GenerationRequest((1,), 2), Submission())
    wait_for_end(server, done)
    running = enqueue(server, LONG, Submission())
    next(tail(server, running))
    endings.cancel(server, running)
    wait_until(lambda: worker.done == 2)

    ours = list(server.keys("minilab:*"))

    assert ours
    assert [key for key in ours if server.ttl(key) <= 0] == []


def test_a_job_record_names_its_worker_while_it_runs(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker(engine=slow_engine)
    job_id = enqueue(server, LONG, Submission())
    next(tail(server, job_id))

    view = jobs.view(server, job_id)

    assert (view.state, view.worker, view.workers_alive) == ("started", worker.name, 1)
    assert isinstance(jobs.fetch(server, job_id), Job)


def test_a_worker_warns_of_a_redis_that_may_drop_keys(
    server: redis.Redis, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.config_set("maxmemory-policy", "allkeys-lru")
    try:
        start_worker()
        wait_until(lambda: "maxmemory-policy allkeys-lru" in caplog.text)
    finally:
        server.config_set("maxmemory-policy", "noeviction")

    (warning,) = [record.getMessage() for record in caplog.records if "maxmemory" in record.getMessage()]
    assert warning.endswith("set it to noeviction")


def test_a_worker_strikes_expired_jobs_off_rqs_registries(server: redis.Redis, start_worker: StartWorker) -> None:
    queue = jobs.queue_of(server, keys.queue_name(keys.DEFAULT_MODEL))
    now = time.time()
    by_expiry = (queue.finished_job_registry.key, queue.failed_job_registry.key)
    for key in by_expiry:
        server.zadd(key, {"expired": now - 1, "kept": now + 600, "forever": float("inf")})
    cancelled = queue.canceled_job_registry.key
    server.zadd(cancelled, {"expired": now - keys.RETENTION - 1, "kept": now - 600})

    start_worker()

    wait_until(lambda: not server.zscore(cancelled, "expired"))
    assert server.zrange(cancelled, 0, -1) == [b"kept"]
    for key in by_expiry:
        wait_until(lambda key=key: server.zrange(key, 0, -1) == [b"kept", b"forever"])  # type: ignore[misc]
