"""Groups: several jobs of one submit, all or none, under one id that names nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.job import Job
from support.one_job import REQUEST, X, everything, queue_of

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import JobState
from minilab_gen.protocol.groups import (
    Group,
    find_group,
    jobs_named,
    requests_of,
    state_of_all,
)
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.submission import Submission, enqueue, enqueue_answers
from minilab_gen.request import GREEDY, MAX_ANSWERS, MAX_SEED, GenerationRequest, check_n

FOUR = requests_of(REQUEST, 4)
IDS = ["x-0", "x-1", "x-2", "x-3"]


def test_each_answer_of_a_group_is_a_job_of_its_own_with_the_next_seed(connection: redis.Redis) -> None:
    assert enqueue_answers(connection, FOUR, X) == "x"

    assert queue_of(connection).get_job_ids() == IDS
    assert [request_of(fetch(connection, job_id)).settings.seed for job_id in IDS] == [11, 12, 13, 14]
    assert find_group(connection, "x") == Group("x", 4)
    assert jobs_named(connection, "x") == IDS
    assert jobs_named(connection, "x-2") == ["x-2"]


def test_the_records_of_a_group_have_the_fields_of_a_single_job(connection: redis.Redis) -> None:
    submission = Submission(priority="high", timeout=77, ttl=60)
    enqueue(connection, REQUEST, replace(submission, job_id="single"))
    enqueue_answers(connection, FOUR, replace(submission, job_id="x"))

    single, member = fetch(connection, "single"), fetch(connection, "x-0")
    assert set(connection.hkeys(Job.key_for("single"))) == set(connection.hkeys(Job.key_for("x-0")))
    assert (single.timeout, single.origin, single.data) == (member.timeout, member.origin, member.data)
    assert (single.result_ttl, single.failure_ttl) == (member.result_ttl, member.failure_ttl)
    assert single.meta.keys() | {"group"} == member.meta.keys()


def test_after_the_largest_seed_comes_the_smallest() -> None:
    last = replace(REQUEST, settings=replace(REQUEST.settings, seed=MAX_SEED - 1))

    seeds = [request.settings.seed for request in requests_of(last, 4)]

    assert seeds == [MAX_SEED - 1, MAX_SEED, 0, 1]


def test_greedy_answers_ask_the_same() -> None:
    greedy = GenerationRequest((5,), settings=GREEDY)

    assert requests_of(greedy, 3) == [greedy] * 3


def test_one_answer_is_a_job_with_the_very_id(connection: redis.Redis) -> None:
    assert enqueue_answers(connection, [REQUEST], X) == "x"

    assert queue_of(connection).get_job_ids() == ["x"]
    assert "group" not in fetch(connection, "x").meta
    assert jobs_named(connection, "x") == ["x"]


def test_a_group_without_a_name_gets_one(connection: redis.Redis) -> None:
    group_id = enqueue_answers(connection, FOUR, Submission())

    assert queue_of(connection).get_job_ids() == Group(group_id, 4).job_ids


@pytest.mark.parametrize("n", [0, -1, MAX_ANSWERS + 1, 1.0, True, "4", None, 10**400])
def test_a_number_of_answers_out_of_range_is_refused(n: Any) -> None:
    with pytest.raises(RequestError, match="n must be a whole number from 1 to 64, got"):
        check_n(n)


def test_the_id_of_a_group_leaves_room_for_those_of_its_jobs(connection: redis.Redis) -> None:
    longest = "x" * 125
    requests = requests_of(REQUEST, MAX_ANSWERS)

    with pytest.raises(RequestError, match="must be at most 125 characters long, got 126"):
        enqueue_answers(connection, FOUR, Submission(job_id=f"{longest}x"))

    assert enqueue_answers(connection, requests, Submission(job_id=longest)) == longest
    assert len(jobs_named(connection, longest)) == MAX_ANSWERS


@pytest.mark.parametrize("taken", ["x", "x-0", "x-3"])
def test_a_group_whose_ids_are_in_use_leaves_nothing_behind(connection: redis.Redis, taken: str) -> None:
    enqueue(connection, REQUEST, Submission(job_id=taken))
    before = everything(connection)

    with pytest.raises(DuplicateJobError, match=f"the job id {taken} is in use by a job that is queued"):
        enqueue_answers(connection, FOUR, X)

    assert everything(connection) == before


def test_another_job_named_like_a_later_answer_does_not_prevent_a_group(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, Submission(job_id="x-7"))

    enqueue_answers(connection, FOUR, X)

    assert jobs_named(connection, "x") == IDS


@pytest.mark.parametrize("again", [1, 2, 4])
def test_the_id_of_a_group_is_given_out_once(connection: redis.Redis, again: int) -> None:
    enqueue_answers(connection, FOUR, X)
    before = everything(connection)

    with pytest.raises(DuplicateJobError, match=r"the job id x(-0)? is in use by a"):
        enqueue_answers(connection, FOUR[:again], X)

    assert everything(connection) == before


@pytest.mark.parametrize("again", [1, 2])
def test_a_group_is_known_by_the_last_of_its_jobs(connection: redis.Redis, again: int) -> None:
    """They expire one by one, as they ended."""
    enqueue_answers(connection, FOUR, X)
    for job_id in IDS[:3]:
        fetch(connection, job_id).delete()

    assert jobs_named(connection, "x") == IDS
    with pytest.raises(DuplicateJobError, match="the job id x is in use by a group of 4 jobs"):
        enqueue_answers(connection, FOUR[:again], X)

    fetch(connection, "x-3").delete()
    assert jobs_named(connection, "x") == ["x"]
    assert enqueue_answers(connection, FOUR, X) == "x"


def test_an_id_whose_answers_are_still_there_is_not_given_to_a_group(connection: redis.Redis) -> None:
    connection.xadd(keys.token_stream("x-1"), {"id": "1", "text": "a"}, id="1-0")

    with pytest.raises(DuplicateJobError, match="the job id x-1 is in use by the tokens of an earlier job"):
        enqueue_answers(connection, FOUR, X)

    assert queue_of(connection).count == 0


def test_of_many_submitters_of_one_group_one_succeeds(server: redis.Redis) -> None:
    together = threading.Barrier(8)

    def submit() -> bool:
        together.wait()
        try:
            return enqueue_answers(server, FOUR, X) == "x"
        except DuplicateJobError:
            return False

    with ThreadPoolExecutor(8) as pool:
        given = [pool.submit(submit) for _ in range(8)]

    assert sum(each.result() for each in given) == 1
    assert queue_of(server).get_job_ids() == IDS


@contextmanager
def losing_the_first_answer_to_exec(connection: redis.Redis) -> Iterator[None]:
    """The server has done it, and the client does not know."""
    connection.set_retry(Retry(NoBackoff(), 3))
    parse: Any = redis.connection.AbstractConnection.read_response
    lost = False

    def read_response(wire: Any, *args: Any, **options: Any) -> Any:
        nonlocal lost
        answer = parse(wire, *args, **options)
        if not lost and isinstance(answer, list) and len(answer) > 4:  # as many as there were commands
            lost = True
            wire.disconnect()
            raise redis.ConnectionError("the answer was lost")
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.connection.AbstractConnection, "read_response", read_response)
        yield
    assert lost


def test_a_group_whose_answer_is_lost_is_submitted_once(server: redis.Redis) -> None:
    with losing_the_first_answer_to_exec(server):
        assert enqueue_answers(server, FOUR, X) == "x"

    assert queue_of(server).get_job_ids() == IDS


def test_a_queue_takes_a_group_whole_or_not_at_all(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, Submission(job_id="a"))

    with pytest.raises(QueueFullError, match="may hold 4 waiting jobs, it holds 1, and 4 more were to come"):
        enqueue_answers(connection, FOUR, replace(X, max_queued=4))
    assert queue_of(connection).get_job_ids() == ["a"]

    assert enqueue_answers(connection, FOUR, replace(X, max_queued=5)) == "x"


@pytest.mark.parametrize(
    "meta",
    [
        *(b"", b"\xff", b"[]", b"7", b"{}", b'{"group": 7}', b'{"group": {}}', b"[" * 5000),
        *(b'{"group": {"id": "y", "index": 0, "n": 4}}', b'{"group": {"id": "x", "index": 1, "n": 4}}'),
        *(b'{"group": {"id": "x", "index": 0, "n": 65}}', b'{"group": {"id": "x", "index": 0, "n": "4"}}'),
    ],
)
def test_a_job_that_another_program_named_so_makes_no_group(connection: redis.Redis, meta: bytes) -> None:
    enqueue(connection, REQUEST, Submission(job_id="x-0"))
    connection.hset(Job.key_for("x-0"), "meta", meta)

    assert jobs_named(connection, "x") == ["x"]


def test_a_key_of_another_type_makes_no_group(connection: redis.Redis) -> None:
    connection.set(Job.key_for("x-0"), "a text")

    assert jobs_named(connection, "x") == ["x"]


@pytest.mark.parametrize(
    ("states", "together"),
    [
        (["queued", "queued"], "queued"),
        (["queued", "cancelled"], "queued"),
        (["queued", "finished"], "started"),
        (["started", "failed"], "started"),
        (["finished", "finished"], "finished"),
        (["finished", "cancelled"], "cancelled"),
        (["cancelled", "failed", "finished"], "failed"),
    ],
)
def test_a_group_is_over_when_all_of_its_jobs_are(states: list[JobState], together: JobState) -> None:
    assert state_of_all(states) == together


def test_a_full_redis_refuses_a_group_and_keeps_nothing_of_it(server: redis.Redis) -> None:
    server.config_set("maxmemory", "1mb")  # less than it needs for itself
    try:
        with pytest.raises(redis.OutOfMemoryError):
            enqueue_answers(server, FOUR, X)
    finally:
        server.config_set("maxmemory", "0")

    assert server.keys("*") == []
    assert enqueue_answers(server, FOUR, X) == "x"
