"""The worker on a real server: what a client reads is what the reference generates, and RQ's records agree."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import Any

import pytest
import redis
from minilab_worker.serving import ServedModel
from rq import Worker as RqWorker
from rq.job import Job
from support.engines import slow_engine
from support.references import reference_answers, reference_ids
from support.served_jobs import LONG, StartWorker, base_queue, status, wait_for_end
from support.waiting import wait_until

from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest, SamplingSettings


def random_request(dice: random.Random, longest_prompt: int = 40) -> GenerationRequest:
    settings = SamplingSettings(
        temperature=dice.choice([0.0, 0.3, 0.8, 1.5]),
        top_k=dice.choice([None, None, 1, 5, 50]),
        top_p=dice.choice([None, None, 0.5, 0.9, 1.0]),
        seed=dice.randrange(1000),
    )
    prompt = tuple(dice.randrange(2048) for _ in range(dice.randint(1, longest_prompt)))
    return GenerationRequest(prompt, dice.randint(1, 40), settings, stop_ids=(dice.randrange(2048),))


def count_in(registry: Any) -> int:
    return len(registry.get_job_ids())


def test_200_random_jobs_give_the_tokens_of_the_reference(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    dice = random.Random(1)
    answers = reference_answers(served, [random_request(dice) for _ in range(50)])
    requests = dice.sample([*answers] * 4, 200)  # each four times, in other company each time
    start_worker(max_batch=16)

    submitted = [(enqueue(server, request, Submission()), request) for request in requests]

    for job_id, request in submitted:
        end = wait_for_end(server, job_id)
        answer = result(server, job_id)
        assert answer is not None
        assert list(answer.ids) == answers[request]
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


def cut_publisher_off(connection: redis.Redis) -> None:
    """Close the connection on which the worker publishes, known by its last command."""
    for client in connection.client_list():
        if client["cmd"] == "mget":
            connection.client_kill_filter(_id=client["id"])


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
    assert tokens == reference_ids(served, LONG)


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

    assert [event.token_id for event in published_tokens(server, job_id)[0]] == reference_ids(served, LONG)


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
        assert list(answer.ids) == reference_ids(served, request)
        assert status(server, job_id) == "finished"
    assert wait_for_end(server, cancelled).reason == "cancelled"
    assert jobs.view(server, cancelled).state == "cancelled"
    assert wait_for_end(server, broken).reason == "error"


def test_300_mixed_jobs_leave_nothing_behind(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    dice = random.Random(3)
    answers = reference_answers(served, [random_request(dice) for _ in range(40)])
    worker = start_worker(max_batch=8)
    good: dict[str, GenerationRequest] = {}
    for number in range(300):
        if number % 10 == 3:
            base_queue(server).enqueue_call(keys.TASK, args=({"prompt": [-1]},))
            continue
        request = dice.choice([*answers])
        job_id = enqueue(server, request, Submission())
        if number % 10 == 7:
            endings.cancel(server, job_id)
        else:
            good[job_id] = request

    for job_id, request in good.items():
        assert wait_for_end(server, job_id).succeeded
        answer = result(server, job_id)
        assert answer is not None
        assert list(answer.ids) == answers[request]
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
