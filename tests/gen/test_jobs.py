"""Jobs from the outside: what is none of ours is refused, every state has its word, and what is seen is so."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from rq.job import JobStatus
from support.client_program import announce_worker, write
from support.one_job import REQUEST, X, end, everything, fail, force, start

from minilab_gen.errors import RequestError, UnknownJobError
from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import JobView, fetch, request_of, view
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.submission import Submission, enqueue

# its record


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"\x80\x04.", "a job's data must be JSON"),
        (b"", "a job's data must be JSON"),
        (5, "a job's data must be JSON"),
        ([], "a job's data must be JSON"),
        (["os.system", None, ["true"], {}], f"a job must name {keys.TASK}, got os.system"),
        ([None, None, [{}], {}], f"a job must name {keys.TASK}, got None"),
        ([keys.TASK, None, [], {}], "a job must have one argument, got 0 and 0 named"),
        ([keys.TASK, None, [{}, {}], {}], "a job must have one argument, got 2 and 0 named"),
        ([keys.TASK, None, [{}], {"a": 1}], "a job must have one argument, got 1 and 1 named"),
        ([keys.TASK, None, 5, {}], "a job's arguments must be a list and an object, got int and dict"),
        ([keys.TASK, None, [{}], None], "a job's arguments must be a list and an object, got list and NoneType"),
        ([keys.TASK, None, [7], {}], "a request must be an object, got int"),
        ([keys.TASK, None, [{"prompt": []}], {}], "prompt must hold at least 1 id"),
        ([keys.TASK, None, [{"prompt": [1], "top_p": 7}], {}], "top_p must be"),
    ],
)
def test_a_job_that_is_none_of_ours_is_refused_with_the_rule(connection: redis.Redis, data: object, rule: str) -> None:
    job = force(connection, data)

    with pytest.raises(RequestError, match=rule):
        request_of(job)


@pytest.mark.parametrize("field", [b"7", b"{}", b'["x", 7]', b"null", b"{", b"\xff", b"[" * 5000])
def test_a_record_whose_dependencies_rq_could_not_write_back_is_refused(field: bytes) -> None:
    jobs.check_record({b"dependency_ids": b'["x"]'})

    with pytest.raises(RequestError, match="dependency_ids must be a list of job ids"):
        jobs.check_record({b"dependency_ids": field})


# how it stands


def test_rqs_every_status_has_a_word(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    job = fetch(connection, "x")

    for status in JobStatus:
        job.set_status(status)
        assert view(connection, "x").state in ("queued", "started", "finished", "failed", "cancelled")


def test_a_waiting_job_is_seen_with_its_position(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, Submission())
    enqueue(connection, REQUEST, X)

    assert view(connection, "x") == JobView("x", "queued", "base", 0, None, 1, None, 0, None)


def test_a_running_job_is_seen_with_its_worker_and_tokens(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    enqueue(connection, REQUEST, X)
    start(connection, "minilab-a")
    write(connection, "x", "a", "b")

    assert view(connection, "x") == JobView("x", "started", "base", 2, None, None, "minilab-a", 1, None)


def test_an_ended_job_is_seen_with_its_end(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a")
    last = end(connection, 1, "stop", stop_id=101)

    assert view(connection, "x") == JobView("x", "finished", "base", 1, last, None, None, 0, None)


def test_a_failed_job_is_seen_with_the_last_line_of_why(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    last = end(connection, 0, "error", error="ValueError: no")

    assert view(connection, "x") == JobView("x", "failed", "base", 0, last, None, None, 0, "ValueError: no")


def test_a_cancelled_job_is_seen_as_cancelled_though_rq_calls_it_failed(connection: redis.Redis) -> None:
    """An ordinary RQ worker has no other word for it."""
    enqueue(connection, REQUEST, X)
    start(connection)
    publish(connection, [("x", EndEvent("cancelled", 0, 3))], running_ttl=600)
    fail(connection, "JobCancelledError")

    assert view(connection, "x").state == "cancelled"


def test_a_job_is_never_seen_as_finished_without_its_end(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a")
    read = connection.xrevrange

    def end_right_after(*arguments: Any, **limits: Any) -> Any:
        found = read(*arguments, **limits)
        monkeypatch.undo()
        end(connection, 1)
        return found

    monkeypatch.setattr(connection, "xrevrange", end_right_after)

    seen = view(connection, "x")

    assert (seen.state, seen.end) == ("started", None)


@pytest.mark.parametrize("priority", keys.PRIORITIES)
def test_a_job_is_seen_with_its_model_whatever_its_priority(connection: redis.Redis, priority: keys.Priority) -> None:
    enqueue(connection, REQUEST, Submission(model="my-own", job_id="x", priority=priority))

    assert view(connection, "x").model == "my-own"


def test_workers_count_as_alive_by_our_lease_or_rqs_record(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-alive")
    announce_worker(connection, "minilab-expired", alive=False)
    announce_worker(connection, "ordinary", alive=False)
    announce_worker(connection, "expired", alive=False)
    connection.delete("rq:worker:expired")

    assert jobs.workers_alive(connection, keys.queue_name("base")) == 2
    assert jobs.workers_alive(connection, keys.queue_name("other")) == 0


def test_looking_at_a_job_does_not_change_the_callers_timeouts(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ's worker objects set minutes on the connection that they are given, and every later reader would copy that."""
    enqueue(connection, REQUEST, X)
    connection.sadd("rq:workers:minilab.base", "rq:worker:ordinary")
    connection.hset("rq:worker:ordinary", "birth", "2026-01-01T00:00:00.000000Z")
    before = dict(connection.connection_pool.connection_kwargs)

    assert view(connection, "x").workers_alive == 1

    assert connection.connection_pool.connection_kwargs == before


def test_an_unknown_job_is_told(connection: redis.Redis) -> None:
    for use in (view, endings.cancel, settle, fetch, result):
        with pytest.raises(UnknownJobError, match="unknown or expired job: nope"):
            use(connection, "nope")

    assert everything(connection) == {}


def test_a_job_that_expires_between_two_looks_is_told(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    job = fetch(connection, "x")
    connection.delete(job.key)

    with pytest.raises(UnknownJobError, match="unknown or expired job: x"):
        jobs.state_of(connection, job)
