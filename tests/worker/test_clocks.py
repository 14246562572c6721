"""Machines whose clocks are a day apart agree about what they find in Redis, whose own clock is the one that counts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
import redis
import rq.utils
from minilab_client.watching.gathering import Gatherer
from minilab_client.watching.layout import Layout
from minilab_worker.job_store import FINGERPRINT_WAIT
from minilab_worker.rq.claims import HEARTBEAT_TTL
from minilab_worker.rq.started_jobs import StartedJobs
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from rq import Queue
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry
from support.waiting import wait_until

from minilab_gen.engine import Engine
from minilab_gen.engine.sequence import Outcome
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.bulk_cancel import cancel_waiting
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.jobs import fetch, queue_of, view
from minilab_gen.protocol.original_request import original_request_of
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.workers import all_workers
from minilab_gen.request import GenerationRequest

pytestmark = pytest.mark.slow

WRONG: Final = 25 * 3600
"""Seconds by which the clocks here are wrong: more than the day for which RQ believes in a job, and keeps an answer."""

NEAR: Final = 120.0
"""Seconds that a test may take."""

LONG = GenerationRequest((5, 6), max_new_tokens=60)
BAD = GenerationRequest((5, 6), max_new_tokens=60, stop_ids=(9999,))

StartWorker = Callable[[], Worker]
SetClock = Callable[[], None]


@pytest.fixture(params=[-WRONG, WRONG], ids=["slow", "fast"])
def set_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Make the clock of this process wrong, as its own code and RQ's read it; the server's stays right."""
    right, right_now = time.time, rq.utils.now

    def wrong_now() -> datetime:
        return right_now() + timedelta(seconds=request.param)

    def set_wrong() -> None:
        monkeypatch.setattr(time, "time", lambda: right() + request.param)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in ("rq", "minilab_worker") and getattr(module, "now", None) is right_now:
                monkeypatch.setattr(module, "now", wrong_now)

    return set_wrong


@pytest.fixture
def start(server: redis.Redis, served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartWorker]:
    """Start workers in threads, whose steps take some milliseconds and which soon beat; all are stopped at the end."""

    def slow_step(engine: Engine) -> list[Outcome]:
        time.sleep(0.05)
        return step(engine)

    step = Engine.step
    monkeypatch.setattr(Engine, "step", slow_step)
    with ExitStack() as stack:

        def start_one() -> Worker:
            worker = Worker(WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), 4, lease=3), served)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            return worker

        yield start_one


def base(connection: redis.Redis) -> Queue:
    return queue_of(connection, keys.queue_name(keys.DEFAULT_MODEL))


def status(connection: redis.Redis, job_id: str) -> str:
    return str(fetch(connection, job_id).get_status().value)


def scores(connection: redis.Redis, key: str) -> list[float]:
    found: Any = connection.zrange(key, 0, -1, withscores=True)
    return [score for _, score in found]


def ahead(connection: redis.Redis, key: str) -> float:
    """Seconds by which the only score of a registry is ahead of the server's clock."""
    (score,) = scores(connection, key)
    return score - server_time(connection)


def test_a_running_job_is_not_failed_by_whoever_looks_at_rqs_registry(
    server: redis.Redis, start: StartWorker, set_clock: SetClock
) -> None:
    """As ``rq info`` does it, on a machine whose clock is right."""
    set_clock()
    start()
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: status(server, job_id) == "started")
    registry = base(server).started_job_registry.key
    executions = ExecutionRegistry(job_id, server).key
    first = ahead(server, registry), ahead(server, executions)
    (begun,) = scores(server, registry)
    wait_until(lambda: scores(server, registry)[0] > begun)  # a heartbeat

    StartedJobRegistry(queue=base(server)).cleanup(timestamp=server_time(server))

    assert status(server, job_id) == "started"
    for found in (first, (ahead(server, registry), ahead(server, executions))):
        assert found == pytest.approx((HEARTBEAT_TTL, HEARTBEAT_TTL + 60), abs=NEAR)
    assert server.ttl(executions) == pytest.approx(HEARTBEAT_TTL + 60, abs=NEAR)
    wait_until(lambda: status(server, job_id) == "finished")


def test_ended_jobs_stay_in_rqs_registries_for_a_day(
    server: redis.Redis, start: StartWorker, set_clock: SetClock
) -> None:
    set_clock()
    worker = start()
    finished, failed, cancelled = (enqueue(server, request, Submission()) for request in (LONG, BAD, LONG))
    server.set(keys.cancel_flag(cancelled), 1)

    wait_until(lambda: worker.done == 3)

    assert [status(server, job_id) for job_id in (finished, failed, cancelled)] == ["finished", "failed", "canceled"]
    queue = base(server)
    for registry in (queue.finished_job_registry, queue.failed_job_registry):
        assert ahead(server, registry.key) == pytest.approx(keys.RETENTION, abs=NEAR)
    assert ahead(server, queue.canceled_job_registry.key) == pytest.approx(0.0, abs=NEAR)


def test_a_repeated_jobs_end_stays_as_long(server: redis.Redis, start: StartWorker, set_clock: SetClock) -> None:
    """RQ's own code records what has to be done again."""
    set_clock()
    worker = start()
    repeated = enqueue(server, GenerationRequest((5,), 2), Submission())
    server.hset(Job.key_for(repeated), mapping={"repeats_left": 1, "repeat_intervals": "[3600]"})

    wait_until(lambda: worker.done == 1)

    wait_until(lambda: scores(server, base(server).finished_job_registry.key))
    assert ahead(server, base(server).finished_job_registry.key) == pytest.approx(keys.RETENTION, abs=NEAR)


def test_what_a_client_ends_stays_as_long(server: redis.Redis, set_clock: SetClock) -> None:
    set_clock()
    enqueue(server, LONG, Submission(job_id="one"))
    enqueue(server, LONG, Submission(job_id="all"))

    endings.cancel(server, "one")
    assert sum(cancel_waiting(server, keys.DEFAULT_MODEL)) == 1

    cancelled = scores(server, base(server).canceled_job_registry.key)
    assert [score - server_time(server) for score in cancelled] == pytest.approx([0.0, 0.0], abs=NEAR)


def test_a_job_waits_as_long_as_it_may_and_no_longer(
    server: redis.Redis, start: StartWorker, set_clock: SetClock
) -> None:
    """By the clock of the client that submits it, of the one that looks at it, and of the worker."""
    patient = enqueue(server, LONG, Submission(ttl=600))
    hasty = enqueue(server, LONG, Submission(ttl=1))
    set_clock()
    as_patient = enqueue(server, LONG, Submission(ttl=600))
    as_hasty = enqueue(server, LONG, Submission(ttl=1))

    for job_id in (patient, as_patient):
        endings.settle(server, job_id)
        assert status(server, job_id) == "queued"
        assert original_ttl(server, job_id) == 600
    for job_id in (hasty, as_hasty):
        wait_until(lambda job_id=job_id: is_over(server, job_id))  # type: ignore[misc]
    assert scores(server, base(server).failed_job_registry.key) == pytest.approx(
        [server_time(server) + keys.RETENTION] * 2, abs=NEAR
    )

    start()
    for job_id in (patient, as_patient):
        wait_until(lambda job_id=job_id: status(server, job_id) == "finished")  # type: ignore[misc]


def original_ttl(connection: redis.Redis, job_id: str) -> int | None:
    """The seconds that a repeat of a job that ended now might wait."""
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.xadd(keys.token_stream(job_id), {"end": "length", "tokens": 0, "prompt_tokens": 2}, id="1-0")
        pipeline.execute()
    ttl = original_request_of(connection, job_id).submission.ttl
    connection.delete(keys.token_stream(job_id))
    return ttl


def is_over(connection: redis.Redis, job_id: str) -> bool:
    endings.settle(connection, job_id)
    end = view(connection, job_id).end
    return end is not None and (end.reason, end.phase) == ("timeout", "waiting")


def test_a_worker_alone_finds_that_a_job_has_waited_for_too_long(
    server: redis.Redis, start: StartWorker, set_clock: SetClock
) -> None:
    """With no reader about, which would find it, too."""
    late, in_time = (enqueue(server, LONG, Submission(ttl=ttl)) for ttl in (1, 600))
    submitted = server_time(server)
    wait_until(lambda: server_time(server) > submitted + 1)
    set_clock()

    worker = start()

    wait_until(lambda: worker.done == 2)
    ends = [stream_length(server, job_id)[1] for job_id in (late, in_time)]
    assert [(end.reason, end.phase) for end in ends if end] == [("timeout", "waiting"), ("length", None)]


def test_a_client_does_not_end_what_a_live_worker_holds(server: redis.Redis, set_clock: SetClock) -> None:
    """RQ's own cancel changes the status of a job that runs on: its worker is told, and writes the end."""
    job_id = enqueue(server, LONG, Submission())
    job = fetch(server, job_id)
    base(server).remove(job)
    with server.pipeline() as pipeline:
        Execution.create(job, HEARTBEAT_TTL, pipeline=pipeline, worker_name="minilab-a")
        job.prepare_for_execution("minilab-a", pipeline=pipeline)
        pipeline.execute()
    server.set(keys.worker_lease("minilab-a"), 1, ex=60)
    job.set_status(JobStatus.CANCELED)
    set_clock()

    endings.settle(server, job_id)

    assert stream_length(server, job_id)[1] is None
    assert server.exists(keys.cancel_flag(job_id))


def test_an_ordinary_rq_workers_job_is_overdue_by_the_servers_clock(server: redis.Redis, set_clock: SetClock) -> None:
    registry = base(server).started_job_registry.key
    server.zadd(registry, {"x:1": server_time(server) + 60, "y:2": server_time(server) - 60})
    set_clock()

    found = {job.job_id: job.is_overdue for job in StartedJobs(server, [base(server)]).all()}

    assert found == {"x": False, "y": True}


@pytest.mark.parametrize("seconds", [0, FINGERPRINT_WAIT + 60])
def test_a_half_written_job_is_left_to_an_equal_worker_for_as_long_by_all_clocks(
    server: redis.Redis, start: StartWorker, set_clock: SetClock, seconds: float
) -> None:
    """Since this many seconds others have left it to a worker of the model that began it."""
    job_id = enqueue(server, LONG, Submission())
    server.hset(Job.key_for(job_id), keys.FINGERPRINT_FIELD, "another")
    if seconds:
        server.hset(Job.key_for(job_id), keys.LEFT_FIELD, str(server_time(server) - seconds))
    server.xadd(keys.token_stream(job_id), {"id": "7", "text": "a"}, id="1-0")
    set_clock()

    start()

    if seconds:
        wait_until(lambda: status(server, job_id) == "failed")
        return
    wait_until(lambda: server.hget(Job.key_for(job_id), keys.LEFT_FIELD))
    left_at: Any = server.hget(Job.key_for(job_id), keys.LEFT_FIELD)
    assert float(left_at) == pytest.approx(server_time(server), abs=NEAR)


def test_a_report_is_as_old_as_it_is(server: redis.Redis, start: StartWorker, set_clock: SetClock) -> None:
    set_clock()
    worker = start()
    wait_until(lambda: [each.stats for each in all_workers(server) if each.stats])

    (seen,) = all_workers(server)

    assert seen.name == worker.name
    assert seen.stats is not None
    assert seen.heartbeat_age is not None
    assert seen.heartbeat_age < NEAR
    assert seen.stats.started_at <= seen.stats.reported_at
    assert seen.stats.started_at == pytest.approx(server_time(server), abs=NEAR)


def test_the_live_view_counts_what_ended_within_a_day(server: redis.Redis, set_clock: SetClock) -> None:
    enqueue(server, LONG, Submission())
    queue, now = base(server), server_time(server)
    server.zadd(queue.finished_job_registry.key, {"a": now + 60, "b": now + keys.RETENTION, "gone": now - 60})
    server.zadd(queue.canceled_job_registry.key, {"c": now - 60, "gone": now - keys.RETENTION - 60})
    set_clock()

    snapshot = Gatherer(server).look(Layout(40))

    (line,) = snapshot.models
    assert (line.done, line.failed, line.cancelled) == (2, 0, 1)
    assert snapshot.taken_at == pytest.approx(now, abs=NEAR)
