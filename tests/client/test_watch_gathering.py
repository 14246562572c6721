"""What a watch sees of queues and jobs, look by look. No terminal here."""

from __future__ import annotations

import time

import pytest
import redis
from minilab_client.watching.gathering import Gatherer
from minilab_client.watching.layout import Layout
from minilab_client.watching.snapshot import Counts, Fleet
from minilab_client.watching.streams import NEWEST_TOKENS
from rq.job import JobStatus
from support.client_program import announce_worker, end, run, submit, write
from support.watching import SCREEN, begin, look, report, texts

from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

REQUEST = GenerationRequest((5, 12, 7))


def finish(connection: redis.Redis, job_id: str, tokens: int) -> None:
    """The end of such a job."""
    job = fetch(connection, job_id)
    end(connection, job_id, tokens)
    connection.zrem(job.started_job_registry.key, f"{job_id}:0123456789abcdef")


def ended_ago(connection: redis.Redis, job_id: str, seconds: float) -> None:
    """Let RQ's books say that a job ended so long ago."""
    job = fetch(connection, job_id)
    registry = job.failed_job_registry if job.get_status() == JobStatus.FAILED else job.finished_job_registry
    connection.zadd(registry.key, {job_id: time.time() - seconds + keys.RETENTION})


# queues


def test_waiting_jobs_are_counted_by_queue_parts(connection: redis.Redis) -> None:
    priorities: list[tuple[str, Priority]] = [
        ("base", "high"),
        ("base", "low"),
        ("base", "low"),
        ("other-3.2", "normal"),
    ]
    for model, priority in priorities:
        enqueue(connection, REQUEST, Submission(model=model, priority=priority))

    base, other = look(connection).models

    assert (base.name, base.high, base.normal, base.low, base.queued) == ("base", 1, 0, 2, 3)
    assert (other.name, other.high, other.normal, other.low) == ("other-3.2", 0, 1, 0)


def test_one_model_can_be_watched_alone(connection: redis.Redis) -> None:
    for model in ("base", "other-3.2"):
        enqueue(connection, REQUEST, Submission(model=model))
        announce_worker(connection, f"minilab-{model}")
        report(connection, f"minilab-{model}", 0, 1.0, model=model)

    snapshot = look(connection, "other-3.2")

    assert [line.name for line in snapshot.models] == ["other-3.2"]
    assert snapshot.counts.models == 1
    assert [worker.name for worker in snapshot.workers] == ["minilab-other-3.2"]


def test_queues_of_other_programs_are_none_of_ours(connection: redis.Redis) -> None:
    for name in ("default", "minilab", "minilab.", "minilab..high", "minilab.é", "minilab.base.normal"):
        connection.sadd("rq:queues", f"rq:queue:{name}")
    connection.sadd("rq:queues", b"rq:queue:minilab.\xff")

    assert look(connection).models == ()


def test_a_queue_that_is_new_is_seen_in_the_look_that_finds_it(connection: redis.Redis) -> None:
    gatherer = Gatherer(connection)
    assert gatherer.look(SCREEN).models == ()

    submit(connection, "x")

    assert gatherer.look(SCREEN).queued == 1


def test_an_empty_service_is_an_empty_snapshot(connection: redis.Redis) -> None:
    snapshot = look(connection)

    assert (snapshot.counts, snapshot.fleet, snapshot.speed.now) == (Counts(), Fleet(), 0.0)


# running jobs


def test_a_running_job_shows_its_text_as_it_grows(connection: redis.Redis) -> None:
    announce_worker(connection)
    begin(connection, "x", "Phileas", " Fogg")
    gatherer = Gatherer(connection)

    (before,) = gatherer.look(SCREEN).running
    write(connection, "x", " était", " là", after=2)
    (after,) = gatherer.look(SCREEN).running

    assert (before.tokens, before.text, before.worker_gone) == (2, "Phileas Fogg", False)
    assert (after.tokens, after.text) == (4, "Phileas Fogg était là")


def test_what_was_read_is_not_read_again(connection: redis.Redis) -> None:
    begin(connection, "x", "a", "b")
    gatherer = Gatherer(connection)
    gatherer.look(SCREEN)

    connection.xdel(keys.token_stream("x"), "1-0", "2-0")
    write(connection, "x", "c", after=2)

    assert texts(gatherer.look(SCREEN)) == {"x": "abc"}


def test_of_many_new_tokens_only_the_newest_are_read(connection: redis.Redis) -> None:
    begin(connection, "x", "the beginning")
    gatherer = Gatherer(connection)
    gatherer.look(SCREEN)

    write(connection, "x", *(f"{n % 10}" for n in range(2, 2000)), after=1)

    (job,) = gatherer.look(SCREEN).running
    assert job.tokens == 1999
    assert job.text == "".join(f"{n % 10}" for n in range(2000 - NEWEST_TOKENS, 2000))


def test_a_job_that_is_shown_stays_where_it_is_until_it_ends(connection: redis.Redis) -> None:
    for job_id in "abcdefghijklmnopqrstuvwxyz":
        begin(connection, job_id)
    gatherer = Gatherer(connection)
    small = Layout(24)
    first = [job.job_id for job in gatherer.look(small).running]

    connection.zadd(fetch(connection, first[0]).started_job_registry.key, {f"{first[0]}:0123456789abcdef": 10.0**11})
    assert [job.job_id for job in gatherer.look(small).running] == first

    finish(connection, first[0], 0)
    then = [job.job_id for job in gatherer.look(small).running]
    assert then[: len(first) - 1] == first[1:]
    assert first[0] not in then


def test_a_job_whose_worker_is_gone_is_marked(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    announce_worker(connection, "minilab-b", alive=False)
    begin(connection, "x", worker="minilab-a")
    begin(connection, "y", worker="minilab-b")

    assert {job.job_id: job.worker_gone for job in look(connection).running} == {"x": False, "y": True}


def test_overwritten_keys_hide_nothing_else(connection: redis.Redis) -> None:
    for job_id in ("x", "y", "z"):
        begin(connection, job_id, "text")
    connection.set("rq:job:x", "no hash")
    connection.set(keys.token_stream("y"), "no stream")
    connection.set("rq:finished:minilab.base", "no set")
    connection.rpush("rq:queue:minilab.base", b"\xff")
    connection.zadd("rq:wip:minilab.base", {b"\xff\xfe": 1.0, b"a:b:c": 2.0, b"*": 3.0})
    connection.zadd("rq:failed:minilab.base", {b"\xff\x1b[2J": time.time() + 60})

    snapshot = look(connection)

    assert texts(snapshot) == {"a": "", "x": "text", "y": "", "z": "text"}
    assert snapshot.ended == ()


def test_what_redis_refuses_is_an_error(server: redis.Redis) -> None:
    begin(server, "x", "text")
    server.execute_command("ACL", "SETUSER", "default", "-xrevrange")
    try:
        with pytest.raises(redis.exceptions.NoPermissionError):
            look(server)
    finally:
        server.execute_command("ACL", "SETUSER", "default", "+xrevrange")


# ended jobs


def test_ended_jobs_show_why_newest_first(connection: redis.Redis) -> None:
    run(connection, "a", ["x", "y"])
    run(connection, "b", ["x"], "error", error="non-finite logits")
    run(connection, "c", [], "timeout", phase="waiting")
    submit(connection, "d")
    endings.cancel(connection, "d")
    for job_id, seconds in {"a": 30, "b": 20, "c": 10}.items():
        ended_ago(connection, job_id, seconds)

    snapshot = look(connection)

    ended = {job.job_id: (job.reason, job.succeeded, job.tokens, job.error) for job in snapshot.ended}
    assert list(ended) == ["d", "c", "b", "a"]
    assert ended["a"] == ("length", True, 2, "")
    assert ended["b"] == ("error", False, 1, "non-finite logits")
    assert ended["c"] == ("timeout", False, 0, "while waiting")
    assert ended["d"] == ("cancelled", False, 0, "")
    (line,) = snapshot.models
    assert (line.done, line.failed, line.cancelled, snapshot.counts.ended) == (1, 2, 1, 4)


def test_a_job_that_stands_in_two_of_rqs_books_is_shown_once(connection: redis.Redis) -> None:
    for job_id in ("a", "b"):
        run(connection, job_id, ["x"])
    connection.zadd("rq:canceled:minilab.base", {"a": time.time()})
    ended_ago(connection, "a", 20)
    ended_ago(connection, "b", 30)

    ended = look(connection).ended

    assert [(job.job_id, job.reason) for job in ended] == [("a", "length"), ("b", "length")]


def test_an_end_is_read_once(connection: redis.Redis) -> None:
    run(connection, "a", ["x"], "stop", stop_id=0)
    gatherer = Gatherer(connection)
    before = gatherer.look(SCREEN).ended

    connection.delete(keys.token_stream("a"))

    assert gatherer.look(SCREEN).ended == before
    (job,) = look(connection).ended
    assert (job.reason, job.succeeded) == ("finished", True)


def test_an_end_that_is_not_yet_written_is_read_later(connection: redis.Redis) -> None:
    submit(connection, "a")
    job = fetch(connection, "a")
    job.set_status(JobStatus.FAILED)
    job.failed_job_registry.add(job, ttl=60, exc_string="MemoryError")
    gatherer = Gatherer(connection)
    (before,) = gatherer.look(SCREEN).ended

    end(connection, "a", 0, "error", error="out of memory")

    (after,) = gatherer.look(SCREEN).ended
    assert (before.reason, before.error) == ("failed", "")
    assert (after.reason, after.error) == ("error", "out of memory")
