"""What a worker makes of strange records and lost answers, in this process: no job is lost, or run or ended twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from chaos.proxy import Proxy
from minilab_worker import job_store, outage
from minilab_worker.job_store import StartedJob
from minilab_worker.rq.completions import Completions
from minilab_worker.rq.started_jobs import StartedJobs
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from rq import Callback, Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.webhook import Webhook
from support.engines import broken_engine, slow_engine
from support.waiting import wait_until

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.generate import generate
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import publish, published_tokens, stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest

JOB = GenerationRequest((5, 6), max_new_tokens=60)
LEASE = 3
StartWorker = Callable[..., Worker]


@pytest.fixture
def start(server: redis.Redis, served: ServedModel, proxy: Proxy) -> Iterator[StartWorker]:
    """Start workers in threads, their steps some milliseconds long; all are stopped before proxy and server."""
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


@pytest.fixture
def proxy(server: redis.Redis, server_url: str) -> Iterator[Proxy]:
    """A way to the server on which answers get lost."""
    with TemporaryDirectory(prefix="ml-") as folder:
        socket = Path(server_url.removeprefix("unix://").partition("?")[0])
        with Proxy(Path(folder, "s"), socket, random.Random(1)) as proxy:
            yield proxy


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
    assert [token.token_id for token in tokens] == [step.token_id for step in generate(served.model, JOB.prompt, 60)]
    assert end is not None
    assert end.succeeded
    assert results(connection, job_id) == 1


@pytest.mark.parametrize(
    "words",
    [b"rq:queue:minilab.base:intermediate", b"\r\nnext\r\n", b"\r\nend\r\n", b"\r\nfinished\r\n"],
    ids=["claim", "token", "end", "record"],
)
def test_an_answer_that_gets_lost_changes_nothing(
    server: redis.Redis, served: ServedModel, start: StartWorker, proxy: Proxy, words: bytes
) -> None:
    job_id = enqueue(server, JOB, Submission())
    proxy.lose_the_answer_to(words)

    worker = start(proxy.url)

    assert_answered_once(server, served, job_id)
    assert proxy.is_sprung
    wait_until(lambda: worker.done >= 1)
    counted = server.hget(f"rq:worker:{worker.name}", "successful_job_count")
    assert counted == b"1"


def test_a_lost_answer_to_the_record_of_a_failure_does_not_record_it_twice(
    server: redis.Redis, start: StartWorker, proxy: Proxy
) -> None:
    start(proxy.url)
    proxy.lose_the_answer_to(b"\r\nfailed\r\n")

    job_id = queue_of(server).enqueue_call(keys.TASK, args=({"prompt": []},)).id

    wait_until(lambda: status(server, job_id) == "failed")
    wait_until(lambda: not server.keys("rq:execution*"))
    assert proxy.is_sprung
    assert results(server, job_id) == 1


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
    tokens = [step.token_id for step in generate(served.model, JOB.prompt, 60)]
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
    tokens = [step.token_id for step in generate(served.model, JOB.prompt, 60)]
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
