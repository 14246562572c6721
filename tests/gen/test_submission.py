"""Submitting: an id is given out once, also where an answer is lost, and what cannot run is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.job import Job
from rq.serializers import JSONSerializer
from support.client_program import write
from support.one_job import REQUEST, X, end, everything, queue_of, start

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import JobState
from minilab_gen.protocol.jobs import fetch, request_of, view
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest


def test_a_submitted_job_is_an_rq_job_that_holds_the_request(connection: redis.Redis) -> None:
    assert enqueue(connection, REQUEST, Submission(job_id="x", timeout=77)) == "x"

    job = Job.fetch("x", connection, serializer=JSONSerializer)
    assert (job.func_name, job.args, job.kwargs) == (keys.TASK, [REQUEST.to_payload()], {})
    assert (job.timeout, job.result_ttl, job.failure_ttl) == (77, keys.RETENTION, keys.RETENTION)
    assert queue_of(connection).get_job_ids() == ["x"]
    assert request_of(job) == REQUEST


@pytest.mark.parametrize("priority", keys.PRIORITIES)
def test_each_priority_has_its_queue(connection: redis.Redis, priority: keys.Priority) -> None:
    enqueue(connection, REQUEST, Submission(job_id="x", priority=priority))

    assert {each: queue_of(connection, each).count for each in keys.PRIORITIES if queue_of(connection, each).count} == {
        priority: 1
    }


def test_a_job_without_a_name_gets_one_of_its_own(connection: redis.Redis) -> None:
    given = [enqueue(connection, REQUEST, Submission()) for _ in range(20)]

    assert len(set(given)) == 20
    assert queue_of(connection).get_job_ids() == given


def test_neither_keys_nor_descriptions_hold_the_prompt(connection: redis.Redis) -> None:
    enqueue(connection, GenerationRequest((1789, 1848), max_new_tokens=9), Submission())

    shown = [str(job.description) for job in queue_of(connection).get_jobs()] + [
        str(key) for key in connection.keys("*")
    ]

    assert shown[0] == "2 prompt tokens, at most 9 new"
    assert not [text for text in shown if "1789" in text or "1848" in text]


def test_what_is_in_redis_is_strict_json(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)

    job = fetch(connection, "x")

    json.loads(job.data, parse_constant=pytest.fail)


@pytest.mark.parametrize("state", ["queued", "started", "finished", "failed", "cancelled"])
def test_a_job_id_is_given_out_once(connection: redis.Redis, state: JobState) -> None:
    enqueue(connection, REQUEST, X)
    if state != "queued":
        start(connection)
        write(connection, "x", "a")
    if state in ("finished", "failed", "cancelled"):
        end(connection, 1, {"finished": "length", "failed": "error", "cancelled": "cancelled"}[state])  # type: ignore[arg-type]
    before = everything(connection)

    for priority in keys.PRIORITIES:
        with pytest.raises(DuplicateJobError, match=f"the job id x is in use by a job that is {state}"):
            enqueue(connection, GenerationRequest((1,)), Submission(job_id="x", priority=priority))

    assert everything(connection) == before | {b"rq:queues": connection.dump("rq:queues")}


def test_an_id_whose_tokens_are_still_there_is_not_given_out(connection: redis.Redis) -> None:
    """Else the new job would be answered with the old one's tokens."""
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a")
    end(connection, 1)
    fetch(connection, "x").delete()

    with pytest.raises(DuplicateJobError, match="the job id x is in use by the tokens of an earlier job"):
        enqueue(connection, REQUEST, X)

    assert queue_of(connection).count == 0


def test_of_many_submitters_of_one_id_one_succeeds(connection: redis.Redis) -> None:
    together = threading.Barrier(8)

    def submit() -> bool:
        together.wait()
        try:
            return enqueue(connection, REQUEST, X) == "x"
        except DuplicateJobError:
            return False

    with ThreadPoolExecutor(8) as pool:
        given = [pool.submit(submit) for _ in range(8)]

    assert sum(each.result() for each in given) == 1
    assert queue_of(connection).get_job_ids() == ["x"]


@contextmanager
def losing_the_answer_to(connection: redis.Redis, command: str) -> Iterator[list[str]]:
    """Lose the first answer to a command, after the server has done what it says; each time it is sent is noted."""
    sent: list[str] = []
    parse: Any = connection.parse_response

    def parse_response(wire: Any, name: str, **options: Any) -> Any:
        answer = parse(wire, name, **options)
        if name == command:
            sent.append(name)
            if len(sent) == 1:
                wire.disconnect()
                raise redis.ConnectionError("the answer was lost")
        return answer

    connection.set_retry(Retry(NoBackoff(), 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "parse_response", parse_response)
        yield sent


@pytest.mark.parametrize("submission", [X, Submission()], ids=["named", "unnamed"])
def test_a_submission_whose_answer_is_lost_makes_one_job(connection: redis.Redis, submission: Submission) -> None:
    enqueue(connection, REQUEST, Submission())  # so that the server knows RQ's script

    with losing_the_answer_to(connection, "EVALSHA") as sent:
        job_id = enqueue(connection, REQUEST, submission)

    assert len(sent) == 2
    assert queue_of(connection).get_job_ids()[1:] == [job_id]


def test_a_lost_answer_does_not_hide_a_duplicate(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)

    with losing_the_answer_to(connection, "EVALSHA"), pytest.raises(DuplicateJobError):
        enqueue(connection, REQUEST, X)


def test_a_full_queue_takes_no_more(connection: redis.Redis) -> None:
    for name in ("a", "b"):
        enqueue(connection, REQUEST, Submission(job_id=name, max_queued=2))

    with pytest.raises(QueueFullError, match="the queue may hold 2 waiting jobs, it holds 2"):
        enqueue(connection, REQUEST, Submission(job_id="x", max_queued=2))
    queue_of(connection).remove("a")

    assert enqueue(connection, REQUEST, Submission(job_id="x", max_queued=2)) == "x"


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 1.0, True, "60", float("nan"), 2_592_001, 2**63])
def test_times_are_whole_seconds_within_what_redis_counts(seconds: Any) -> None:
    with pytest.raises(RequestError, match="timeout must be a whole number from 1 to 2592000"):
        Submission(timeout=seconds)
    with pytest.raises(RequestError, match="ttl must be a whole number from 1 to 2592000"):
        Submission(ttl=seconds)


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, "5"])
def test_a_bound_of_a_queue_is_a_number_of_jobs(bound: Any) -> None:
    with pytest.raises(RequestError, match="max_queued must be a whole number of at least 1"):
        Submission(max_queued=bound)


def test_an_unknown_priority_is_refused() -> None:
    with pytest.raises(RequestError, match="priority must be one of high, normal, low, got 'urgent'"):
        Submission(priority="urgent")  # type: ignore[arg-type]


@pytest.mark.parametrize("before", ["", "EVALSHA"])
def test_a_full_redis_refuses_a_job_and_keeps_nothing_of_it(server: redis.Redis, before: str) -> None:
    """Redis may be full from the first command on, or from the one that writes the job."""
    enqueue(server, REQUEST, Submission(job_id="earlier"))
    with full_before(server, before), pytest.raises(redis.OutOfMemoryError):
        enqueue(server, REQUEST, X)

    assert not server.exists("rq:job:x")
    assert queue_of(server).get_job_ids() == ["earlier"]
    with pytest.raises(UnknownJobError):
        view(server, "x")
    assert enqueue(server, REQUEST, X) == "x"


@contextmanager
def full_before(server: redis.Redis, command: str) -> Iterator[None]:
    """A server that has no memory left when the command comes; the empty one is any."""
    execute: Any = server.execute_command

    def execute_command(*words: Any, **options: Any) -> Any:
        if command in ("", words[0]):
            execute("CONFIG", "SET", "maxmemory", "1mb")  # less than it needs for itself
        return execute(*words, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "execute_command", execute_command)
        if not command:
            server.ping()
        try:
            yield
        finally:
            execute("CONFIG", "SET", "maxmemory", "0")


def test_a_full_redis_takes_no_token_and_says_so(server: redis.Redis) -> None:
    with full_before(server, ""), pytest.raises(redis.OutOfMemoryError):
        write(server, "x", "a")

    assert not server.exists(keys.token_stream("x"))
