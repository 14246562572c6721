"""Ends that no worker writes, of jobs cancelled while they wait, expired, or left by RQ: one each, none too early."""

from __future__ import annotations

import json
from typing import Literal

import pytest
import redis
from rq.job import Job, JobStatus
from support.client_program import write
from support.one_job import REQUEST, X, end, everything, queue_of, start

from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, EndReason, JobState
from minilab_gen.protocol.jobs import fetch, view
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.submission import EXPIRES_AT, Submission, enqueue


@pytest.mark.parametrize("meta", [{"expires_at": "soon"}, {"expires_at": None}, {"expires_at": True}, [1], "x", 7])
def test_a_job_whose_expiry_is_no_time_has_none(connection: redis.Redis, meta: object) -> None:
    enqueue(connection, REQUEST, X)
    connection.hset("rq:job:x", "meta", json.dumps(meta))

    assert not endings.has_expired(fetch(connection, "x"), 9e12)
    settle(connection, "x")
    assert view(connection, "x").state == "queued"


def test_a_cancelled_waiting_job_ends_at_once_with_zero_tokens(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)

    assert endings.cancel(connection, "x") == "queued"

    assert published_tokens(connection, "x") == ([], EndEvent("cancelled", 0, 3))
    assert queue_of(connection).count == 0
    assert (view(connection, "x").state, fetch(connection, "x").get_status()) == ("cancelled", JobStatus.CANCELED)
    ours = [keys.token_stream("x"), keys.cancel_flag("x"), "rq:job:x"]
    assert all(0 < connection.ttl(key) <= keys.RETENTION for key in ours)


def test_cancelling_again_changes_nothing(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    endings.cancel(connection, "x")
    before = everything(connection)

    assert endings.cancel(connection, "x") == "cancelled"

    assert everything(connection) == before


def test_cancelling_a_running_job_sets_the_flag_for_its_worker(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a")

    assert endings.cancel(connection, "x") == "started"

    assert 0 < connection.ttl(keys.cancel_flag("x")) <= keys.RETENTION
    assert published_tokens(connection, "x")[1] is None


def test_cancelling_a_job_that_a_worker_has_just_claimed_leaves_it_to_the_worker(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    queue = queue_of(connection)
    connection.lmove(queue.key, queue.intermediate_queue_key)

    assert endings.cancel(connection, "x") == "queued"

    assert connection.exists(keys.cancel_flag("x"))
    assert not connection.exists(keys.token_stream("x"))


@pytest.mark.parametrize(("reason", "state"), [("length", "finished"), ("error", "failed")])
def test_cancelling_an_ended_job_changes_nothing(connection: redis.Redis, reason: EndReason, state: JobState) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    end(connection, 0, reason)
    before = everything(connection)

    assert endings.cancel(connection, "x") == state

    assert everything(connection) == before


@pytest.mark.parametrize("ending", ["cancel", "expiry"])
def test_a_job_whose_canceller_was_killed_on_the_way_can_still_end(connection: redis.Redis, ending: str) -> None:
    """A client may be killed when it has taken the job from the queue and not yet written its end."""
    enqueue(connection, REQUEST, Submission(job_id="x", ttl=1))
    assert endings.take_from_queue(connection, fetch(connection, "x"))
    if ending == "expiry":
        connection.hset("rq:job:x", "meta", json.dumps({EXPIRES_AT: 0.0}))

    if ending == "cancel":
        endings.cancel(connection, "x")
    else:
        settle(connection, "x")

    assert view(connection, "x").end is not None
    assert view(connection, "x").state in ("cancelled", "failed")


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.FAILED])
def test_no_end_is_written_while_a_worker_still_writes_tokens(connection: redis.Redis, status: JobStatus) -> None:
    """RQ's own cancel and its clean-up change the status of a job that runs on: an end would be followed by tokens."""
    enqueue(connection, REQUEST, X)
    start(connection)
    connection.set(keys.worker_lease("minilab-a"), 1, ex=60)
    write(connection, "x", "a")
    fetch(connection, "x").set_status(status)

    settle(connection, "x")

    assert published_tokens(connection, "x")[1] is None
    assert connection.exists(keys.cancel_flag("x")) == (status is JobStatus.CANCELED)  # the worker must be told


def test_a_job_that_waits_to_be_continued_has_started_in_time(connection: redis.Redis) -> None:
    """It is back in its queue because its worker's lease expired; its ttl was about the first start."""
    enqueue(connection, REQUEST, Submission(job_id="x", ttl=1))
    write(connection, "x", "a")
    connection.hset("rq:job:x", "meta", json.dumps({EXPIRES_AT: 0.0}))

    settle(connection, "x")

    assert view(connection, "x").end is None
    assert queue_of(connection).get_job_ids() == ["x"]


def test_a_job_that_rq_cancelled_ends_although_its_worker_was_killed(connection: redis.Redis) -> None:
    """Its execution stays in RQ's records for a day, for the next worker; but what is cancelled is not taken over."""
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a")
    fetch(connection, "x").cancel()

    settle(connection, "x")

    assert published_tokens(connection, "x")[1] == EndEvent("cancelled", 1, 3)


@pytest.mark.parametrize(("status", "reason"), [(JobStatus.CANCELED, "cancelled"), (JobStatus.FAILED, "error")])
def test_an_end_is_written_when_no_worker_is_left_to_do_it(
    connection: redis.Redis, status: JobStatus, reason: EndReason
) -> None:
    enqueue(connection, REQUEST, X)
    execution = start(connection)
    write(connection, "x", "a")
    fetch(connection, "x").set_status(status)
    connection.zadd("rq:executions:x", {execution.id: 1.0})  # its heartbeats have stopped

    settle(connection, "x")

    last = published_tokens(connection, "x")[1]
    assert last is not None
    assert (last.reason, last.tokens) == (reason, 1)


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_a_record_whose_end_is_lost_on_the_way_does_not_stay_for_ever(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch, reason: Literal["cancelled", "timeout"]
) -> None:
    """Redis is killed, or the caller is, once RQ has the status."""
    enqueue(connection, REQUEST, X)
    job = fetch(connection, "x")

    def lost(*_: object, **__: object) -> None:
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(Job, "cancel", lost)
    monkeypatch.setattr(endings, "_record_failure", lost)
    with pytest.raises(redis.ConnectionError):
        endings.end_waiting(connection, job, reason)

    assert 0 < connection.ttl("rq:job:x") <= keys.RETENTION
