"""Jobs from the outside: an id is given out once, what cannot run is refused, and every state has its word."""

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
from rq import Queue, Worker
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, EndReason, JobState, TokenEvent
from minilab_gen.protocol.jobs import JobView, fetch, request_of, view
from minilab_gen.protocol.results import JobResult, result
from minilab_gen.protocol.streams import publish, published_tokens
from minilab_gen.protocol.submission import EXPIRES_AT, Submission, enqueue
from minilab_gen.request import GenerationRequest, SamplingSettings

REQUEST = GenerationRequest((5, 12, 7), 4, SamplingSettings(0.8, top_k=20, top_p=0.9, seed=11), stop_ids=(2,))
X = Submission(job_id="x")


def queue_of(connection: redis.Redis, priority: keys.Priority = "normal") -> Queue:
    return Queue(keys.queue_name("base", priority), connection=connection, serializer=JSONSerializer)


def start(connection: redis.Redis, worker: str = "minilab-a") -> Execution:
    """What a worker does first with job x."""
    queue_of(connection).remove("x")
    job = fetch(connection, "x")
    with connection.pipeline() as pipeline:
        execution = Execution.create(job, 60, pipeline=pipeline, worker_name=worker)
        job.prepare_for_execution(worker, pipeline=pipeline)
        pipeline.execute()
    return execution


def write(connection: redis.Redis, *texts: str) -> None:
    tokens = [("x", TokenEvent(n, 100 + n, text)) for n, text in enumerate(texts, start=1)]
    publish(connection, tokens, running_ttl=600)


def end(connection: redis.Redis, tokens: int, reason: EndReason = "length", **details: Any) -> EndEvent:
    """The terminal entry of job x, then RQ's record."""
    last = EndEvent(reason, tokens, 3, **details)
    publish(connection, [("x", last)], running_ttl=600)
    job = fetch(connection, "x")
    with connection.pipeline() as pipeline:
        for execution in job.get_executions():
            execution.delete(job, pipeline=pipeline)
        pipeline.execute()
    if last.succeeded:
        job.set_status(JobStatus.FINISHED)
    elif reason == "cancelled":
        job.cancel()
    else:
        fail(connection, details.get("error", reason))
    return last


def fail(connection: redis.Redis, why: str) -> None:
    """RQ's record of a failure."""
    job = fetch(connection, "x")
    job.set_status(JobStatus.FAILED)
    Result.create_failure(job, 600, f"Traceback (most recent call last):\n  ...\n{why}\n")


def everything(connection: redis.Redis) -> dict[Any, Any]:
    """Every key with what it holds."""
    return {key: connection.dump(key) for key in connection.keys("*")}


def announce(connection: redis.Redis, name: str, *, leased: bool = True) -> None:
    """A worker in RQ's records, with a lease of ours or without."""
    Worker([keys.queue_name("base")], name=name, connection=connection).register_birth()
    if leased:
        connection.set(keys.worker_lease(name), 1, ex=600)


# enqueue


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
        write(connection, "a")
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
    write(connection, "a")
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


@pytest.mark.parametrize("job_id", ["a:b", "a b", "ü", "", "x\n", "x" * 129, "../x", 5, b"x"])
def test_an_id_is_checked_before_it_becomes_a_key(connection: redis.Redis, job_id: Any) -> None:
    for use in (jobs.view, endings.cancel, settle, fetch, result):
        with pytest.raises(RequestError, match="a job id must be 1 to 128 letters, digits, _ or -"):
            use(connection, job_id)
    with pytest.raises(RequestError, match="a job id must be 1 to 128 letters, digits, _ or -"):
        Submission(job_id=job_id)

    assert everything(connection) == {}


@pytest.mark.parametrize("model", ["a/b", "a b", "", "x" * 65, None, "*", ".", "..", ".a", "a.", "a\n", "a.é"])
def test_a_model_name_is_checked_before_it_becomes_a_key(model: Any) -> None:
    with pytest.raises(RequestError, match="a model name must be 1 to 64 letters, digits, _, - or, but at its ends"):
        Submission(model=model)


@pytest.mark.parametrize("model", ["a.high", "a.low", "a.normal", "a.b.high"])
def test_a_model_name_that_would_be_the_queue_of_a_priority_is_refused(model: str) -> None:
    with pytest.raises(RequestError, match=r"must not end in \.high, \.normal or \.low, since"):
        Submission(model=model)


@pytest.mark.parametrize("model", ["base", "X3.2", "Llama-3.2-1B.v2", "a..b", "high", "low", "normal", "a.High"])
def test_a_queue_tells_its_model_and_its_priority(model: str) -> None:
    assert keys.check_model_name(model) == model
    parts = [keys.queue_parts(name) for name in keys.queue_names(model)]

    assert parts == [(model, priority) for priority in keys.PRIORITIES]


@pytest.mark.parametrize("queue", ["default", "minilab", "minilab.", "minilab.high.low", "minilab..high", "other.base"])
def test_a_queue_of_others_is_none_of_a_model(queue: str) -> None:
    parts = keys.queue_parts(queue)

    assert parts is None or keys.queue_name(*parts) == queue
    assert parts in (None, ("high", "low"))


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
        write(server, "a")

    assert not server.exists(keys.token_stream("x"))


# request_of


def force(connection: redis.Redis, data: object) -> Job:
    """A job that another program put into the queue under the id x."""
    queue_of(connection).enqueue_call(keys.TASK, args=({},), job_id="x")
    connection.hset("rq:job:x", "data", json.dumps(data).encode() if not isinstance(data, bytes) else data)
    return fetch(connection, "x")


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


@pytest.mark.parametrize("meta", [{"expires_at": "soon"}, {"expires_at": None}, {"expires_at": True}, [1], "x", 7])
def test_a_job_whose_expiry_is_no_time_has_none(connection: redis.Redis, meta: object) -> None:
    enqueue(connection, REQUEST, X)
    connection.hset("rq:job:x", "meta", json.dumps(meta))

    assert not endings.has_expired(fetch(connection, "x"), 9e12)
    settle(connection, "x")
    assert view(connection, "x").state == "queued"


# view


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
    announce(connection, "minilab-a")
    enqueue(connection, REQUEST, X)
    start(connection, "minilab-a")
    write(connection, "a", "b")

    assert view(connection, "x") == JobView("x", "started", "base", 2, None, None, "minilab-a", 1, None)


def test_an_ended_job_is_seen_with_its_end(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "a")
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
    write(connection, "a")
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
    announce(connection, "minilab-alive")
    announce(connection, "minilab-expired", leased=False)
    announce(connection, "ordinary", leased=False)
    announce(connection, "expired", leased=False)
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


# cancel and settle


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
    write(connection, "a")

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
    write(connection, "a")
    fetch(connection, "x").set_status(status)

    settle(connection, "x")

    assert published_tokens(connection, "x")[1] is None
    assert connection.exists(keys.cancel_flag("x")) == (status is JobStatus.CANCELED)  # the worker must be told


def test_a_job_that_waits_to_be_continued_has_started_in_time(connection: redis.Redis) -> None:
    """It is back in its queue because its worker's lease expired; its ttl was about the first start."""
    enqueue(connection, REQUEST, Submission(job_id="x", ttl=1))
    write(connection, "a")
    connection.hset("rq:job:x", "meta", json.dumps({EXPIRES_AT: 0.0}))

    settle(connection, "x")

    assert view(connection, "x").end is None
    assert queue_of(connection).get_job_ids() == ["x"]


def test_a_job_that_rq_cancelled_ends_although_its_worker_was_killed(connection: redis.Redis) -> None:
    """Its execution stays in RQ's records for a day, for the next worker; but what is cancelled is not taken over."""
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "a")
    fetch(connection, "x").cancel()

    settle(connection, "x")

    assert published_tokens(connection, "x")[1] == EndEvent("cancelled", 1, 3)


@pytest.mark.parametrize(("status", "reason"), [(JobStatus.CANCELED, "cancelled"), (JobStatus.FAILED, "error")])
def test_an_end_is_written_when_no_worker_is_left_to_do_it(
    connection: redis.Redis, status: JobStatus, reason: EndReason
) -> None:
    enqueue(connection, REQUEST, X)
    execution = start(connection)
    write(connection, "a")
    fetch(connection, "x").set_status(status)
    connection.zadd("rq:executions:x", {execution.id: 1.0})  # its heartbeats have stopped

    settle(connection, "x")

    last = published_tokens(connection, "x")[1]
    assert last is not None
    assert (last.reason, last.tokens) == (reason, 1)


# result


def test_a_job_that_has_not_ended_has_no_result(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    assert result(connection, "x") is None
    start(connection)
    assert result(connection, "x") is None
    write(connection, "a", "b")
    assert result(connection, "x") is None


def test_the_result_is_what_the_stream_holds(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, " é", "", "\n")
    last = end(connection, 3, text="�")

    assert result(connection, "x") == JobResult("x", (101, 102, 103), " é\n�", last, seed=11)


def test_a_job_that_failed_or_was_cancelled_keeps_the_tokens_so_far(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "a", "b")
    last = end(connection, 2, "cancelled")

    assert result(connection, "x") == JobResult("x", (101, 102), "ab", last, seed=11)


def test_a_job_that_failed_unread_has_a_result_without_a_seed(connection: redis.Redis) -> None:
    force(connection, b"\x80\x04.")
    queue_of(connection).remove("x")
    fail(connection, "DeserializationError")

    found = result(connection, "x")

    assert found == JobResult("x", (), "", EndEvent("error", 0, 0, error="DeserializationError"), seed=None)
    assert found is not None
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["seed"] is None


def test_a_finished_job_whose_tokens_are_gone_has_no_result_but_an_error(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    end(connection, 0)
    connection.delete(keys.token_stream("x"))

    with pytest.raises(UnknownJobError, match="x has finished, and its tokens have expired"):
        result(connection, "x")


def test_a_result_with_a_gap_is_no_result(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "a", "b")
    end(connection, 2)
    connection.xdel(keys.token_stream("x"), "1-0")

    with pytest.raises(StreamError, match="token 1 is missing"):
        result(connection, "x")


@pytest.mark.parametrize("field", [b"7", b"{}", b'["x", 7]', b"null", b"{", b"\xff", b"[" * 5000])
def test_a_record_whose_dependencies_rq_could_not_write_back_is_refused(field: bytes) -> None:
    jobs.check_record({b"dependency_ids": b'["x"]'})

    with pytest.raises(RequestError, match="dependency_ids must be a list of job ids"):
        jobs.check_record({b"dependency_ids": field})
