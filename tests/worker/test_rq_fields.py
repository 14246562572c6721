"""What our scripts write when a job starts and ends, key by key and field by field: what RQ's own methods write.

A release of RQ that writes anything else fails here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
import redis
from minilab_worker.job_store import Completion
from minilab_worker.rq import RqJobStore
from minilab_worker.rq.claims import HEARTBEAT_TTL
from rq import Queue, SimpleWorker
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker import WorkerStatus

from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.streams import publish
from minilab_gen.request import GenerationRequest

QUEUE: Final = keys.queue_name(keys.DEFAULT_MODEL)
JOB_ID: Final = "the-job"
RESULT: Final[dict[str, Any]] = {"ids": [1, 2, 3], "end": "length", "text": "trois mots ici"}
FAILURE: Final = "the job ran out of time while running"

LEASE: Final = 60
"""Seconds; a worker's record lives four times as long, and a minute more."""

OURS: Final = frozenset({"minilab_fingerprint"})
"""Fields of a record that are not RQ's."""

SLACK: Final = 60.0
"""Seconds between what the two ways wrote, on a loaded machine."""

Dump = dict[str, tuple[str, Any, int]]


class RqsOwnWorker:
    """Starts and ends a job by RQ's own methods, as RQ's worker calls them."""

    def __init__(self, connection: redis.Redis, name: str) -> None:
        self.worker = SimpleWorker(
            [QUEUE], name=name, connection=connection, serializer=JSONSerializer, worker_ttl=4 * LEASE
        )
        self.worker.register_birth()

    def claim(self) -> tuple[Job, Execution]:
        connection = self.worker.connection
        queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
        connection.lmove(queue.key, queue.intermediate_queue_key)
        job = Job.fetch(JOB_ID, connection, serializer=JSONSerializer)
        with connection.pipeline() as pipeline:
            execution = Execution.create(job, HEARTBEAT_TTL, pipeline=pipeline, worker_name=self.worker.name)
            job.prepare_for_execution(self.worker.name, pipeline=pipeline)
            self.worker.set_state(WorkerStatus.BUSY, pipeline=pipeline)
            pipeline.lrem(queue.intermediate_queue_key, 1, JOB_ID)
            pipeline.execute()
        return job, execution

    def finish(self, job: Job, execution: Execution, completion: Completion) -> None:
        assert job.started_at is not None
        job.ended_at = now()
        details: dict[str, Any] = {
            "worker_name": self.worker.name,
            "execution_id": execution.id,
            "execution_started_at": execution.created_at,
            "execution_ended_at": job.ended_at,
        }
        with self.worker.connection.pipeline() as pipeline:
            self.worker.increment_total_working_time(job.ended_at - job.started_at, pipeline)
            if completion.result is not None:
                job._result = completion.result
                self.worker.increment_successful_job_count(pipeline)
                job._handle_success(keys.RETENTION, pipeline=pipeline, **details)
            elif completion.failure is not None:
                job.failure_ttl = keys.RETENTION
                self.worker.increment_failed_job_count(pipeline)
                job.set_status(JobStatus.FAILED, pipeline=pipeline)
                job._handle_failure(completion.failure, pipeline=pipeline, **details)
            else:
                job.set_status(JobStatus.CANCELED, pipeline=pipeline)
                registry = CanceledJobRegistry(job.origin, job.connection, serializer=JSONSerializer)
                registry.add(job, pipeline=pipeline)
            job.cleanup(keys.RETENTION, pipeline=pipeline, remove_from_queue=False)
            execution.delete(job, pipeline)
            self.worker.set_state(WorkerStatus.IDLE, pipeline=pipeline)
            pipeline.execute()


@pytest.fixture
def store(server: redis.Redis, server_url: str) -> Iterator[RqJobStore]:
    """Our job store, with a job in its queue."""
    with closing(RqJobStore(connect(server_url), [QUEUE], LEASE, "our-model")) as store:
        store.open(ignore)
        submit(server)
        yield store


def ignore(job_id: str) -> None:
    """No job is stopped here."""


def submit(server: redis.Redis) -> None:
    queue = Queue(QUEUE, connection=server, serializer=JSONSerializer)
    queue.enqueue_call(keys.TASK, args=(GenerationRequest((5, 6), 3).to_payload(),), job_id=JOB_ID, timeout=60)
    server.sadd(f"rq:job:{JOB_ID}:dependents", "follower")  # so that these keys have a time to live, too
    server.sadd(f"rq:job::{JOB_ID}:dependencies", "leader")


def dump(server: redis.Redis, renamed: dict[str, str]) -> Dump:
    """Type, value and time to live of every key of RQ's; names that differ by chance are replaced."""
    found: Dump = {}
    for raw in server.scan_iter("rq:*"):
        key = raw.decode()
        kind = server.type(key).decode()  # type: ignore[union-attr]
        value = _VALUES[kind](server, key)
        text = json.dumps(value, default=lambda raw: raw.decode("latin-1"), sort_keys=True)
        for name, shown in renamed.items():
            key, text = key.replace(name, shown), text.replace(name, shown)
        ttl: Any = server.ttl(raw)
        found[key] = (kind, json.loads(text), ttl)
    return found


def _text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in fields.items()}


_VALUES: Final[dict[str, Any]] = {
    "hash": lambda server, key: {n: v for n, v in _text(server.hgetall(key)).items() if n not in OURS},
    "zset": lambda server, key: {
        member.decode(): score for member, score in server.zrange(key, 0, -1, withscores=True)
    },
    "set": lambda server, key: sorted(server.smembers(key)),
    "list": lambda server, key: server.lrange(key, 0, -1),
    "stream": lambda server, key: [_text(fields) for _, fields in server.xrange(key)],
    "string": lambda server, key: server.get(key),
}

MOMENTS: Final = frozenset(
    {"started_at", "ended_at", "last_heartbeat", "created_at", "enqueued_at", "birth"}
    | {"execution_started_at", "execution_ended_at", "total_working_time"}
)
"""Fields that hold a time: both ways write one, in the same form."""

OF_THE_PROCESS: Final = frozenset({"pid", "hostname", "ip_address", "version", "python_version", "queues"})


def shape(text: str) -> str:
    """The form of a time: RQ's text, a number, or nothing."""
    if not text:
        return "nothing"
    return "text" if text.endswith("Z") else "number" if float(text) >= 0 else "?"


def comparable(value: Any) -> Any:
    """A value with its times replaced by their form."""
    if isinstance(value, dict):
        fields = {n: v for n, v in value.items() if n not in OF_THE_PROCESS}
        return {n: shape(v) if n in MOMENTS else comparable(v) for n, v in fields.items()}
    return [comparable(each) for each in value] if isinstance(value, list) else value


def assert_same(ours: Dump, theirs: Dump) -> None:
    assert sorted(ours) == sorted(theirs)
    for key, (kind, value, ttl) in ours.items():
        their_kind, their_value, their_ttl = theirs[key]
        assert kind == their_kind, key
        if kind == "zset":
            assert value.keys() == their_value.keys(), key
            assert all(abs(value[member] - their_value[member]) < SLACK for member in value), key
        else:
            assert comparable(value) == comparable(their_value), key
        assert abs(ttl - their_ttl) < SLACK, (key, ttl, their_ttl)


def test_a_heartbeat_lengthens_the_keys_that_rqs_heartbeat_lengthens(server: redis.Redis, store: RqJobStore) -> None:
    (claim,) = store.claim(1, 0)
    age(server, claim.job.execution_id)
    store.renew([claim.job])
    ours = dump(server, {store.worker: "ww", claim.job.execution_id: "ee"})
    server.flushall()
    submit(server)
    rqs_own = RqsOwnWorker(redis.Redis(connection_pool=server.connection_pool), "rqs-own-worker")
    job, execution = rqs_own.claim()
    age(server, execution.id)
    with rqs_own.worker.connection.pipeline() as pipeline:
        rqs_own.worker.heartbeat(pipeline=pipeline)
        job.heartbeat(now(), HEARTBEAT_TTL, pipeline=pipeline, xx=True)
        execution.heartbeat(job.started_job_registry, HEARTBEAT_TTL, pipeline=pipeline)
        pipeline.execute()

    assert_same(ours, dump(server, {"rqs-own-worker": "ww", execution.id: "ee"}))


def age(server: redis.Redis, execution_id: str) -> None:
    """As if the last heartbeat was long ago."""
    server.expire(f"rq:execution:{JOB_ID}:{execution_id}", 1000)
    server.expire(f"rq:executions:{JOB_ID}", 1000)
    server.zadd(f"rq:executions:{JOB_ID}", {execution_id: 1000})
    server.zadd(f"rq:wip:{QUEUE}", {f"{JOB_ID}:{execution_id}": 1000})


def written_by_us(server: redis.Redis, store: RqJobStore, completion: dict[str, Any] | None) -> Dump:
    (claim,) = store.claim(1, 0)
    if completion is not None:
        publish_end(server)
        assert store.finish([Completion(claim.job, **completion)]) == set()
    return dump(server, {store.worker: "ww", claim.job.execution_id: "ee"})


def publish_end(server: redis.Redis) -> None:
    publish(server, [(JOB_ID, EndEvent("length", 0, 2))], running_ttl=60)


@pytest.mark.parametrize("entries", [0, 1])
def test_nothing_is_recorded_of_a_job_whose_stream_lacks_its_end(
    server: redis.Redis, store: RqJobStore, entries: int
) -> None:
    """It may have been confirmed by a server that is no longer the master."""
    (claim,) = store.claim(1, 0)
    publish(server, [(JOB_ID, TokenEvent(1, 7, "a"))][:entries], running_ttl=60)
    before = dump(server, {})

    assert store.finish([Completion(claim.job, result=RESULT)]) == {claim.job.execution_id}

    assert dump(server, {}) == before


def written_by_rq(server: redis.Redis, completion: dict[str, Any] | None) -> Dump:
    server.flushall()
    submit(server)
    with closing(redis.Redis(connection_pool=server.connection_pool)) as connection:
        rqs_own = RqsOwnWorker(connection, "rqs-own-worker")
        job, execution = rqs_own.claim()
        if completion is not None:
            rqs_own.finish(job, execution, Completion(None, **completion))  # type: ignore[arg-type]
    return dump(server, {"rqs-own-worker": "ww", execution.id: "ee"})


@pytest.mark.parametrize(
    "completion",
    [None, {"result": RESULT}, {"failure": FAILURE}, {}],
    ids=["started", "finished", "failed", "cancelled"],
)
def test_every_key_and_field_is_what_rq_writes(
    server: redis.Redis, store: RqJobStore, completion: dict[str, Any] | None
) -> None:
    ours = written_by_us(server, store, completion)

    assert_same(ours, written_by_rq(server, completion))


def test_a_recorded_result_can_be_read_by_rq(server: redis.Redis, store: RqJobStore) -> None:
    (claim,) = store.claim(1, 0)
    publish_end(server)

    store.finish([Completion(claim.job, result=RESULT)])

    job = Job.fetch(JOB_ID, server, serializer=JSONSerializer)
    latest = job.latest_result()
    assert latest is not None
    assert (job.get_status(), latest.return_value) == (JobStatus.FINISHED, RESULT)
    assert (latest.worker_name, latest.execution_id) == (store.worker, claim.job.execution_id)
    assert latest.execution_started_at is not None
    assert latest.execution_started_at.timestamp() == pytest.approx(claim.job.started_at, abs=0.001)
