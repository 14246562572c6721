"""What a watch sees of a service, look by look, and what that costs Redis. No terminal here."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from minilab_client.watching.gathering import Gatherer
from minilab_client.watching.layout import Layout
from minilab_client.watching.snapshot import Counts, Fleet, Snapshot
from minilab_client.watching.streams import NEWEST_TOKENS
from minilab_client.watching.workforce import STALE, Speedometer
from rq import Worker
from rq.job import JobStatus
from support.client_program import announce_worker, end, run, start, submit, write

from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.jobs import fetch, queue_of
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats
from minilab_gen.request import GenerationRequest

SCREEN = Layout(40)
REQUEST = GenerationRequest((5, 12, 7))


def begin(connection: redis.Redis, job_id: str, *texts: str, worker: str = "minilab-test") -> None:
    """A job that a worker runs, with these tokens so far."""
    submit(connection, job_id)
    start(connection, job_id)
    job = fetch(connection, job_id)
    connection.hset(job.key, "worker_name", worker)
    connection.zadd(job.started_job_registry.key, {f"{job_id}:0123456789abcdef": time.time() + 60})
    write(connection, job_id, *texts)


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


def report(connection: redis.Redis, worker: str, tokens: int, reported_at: float, **other: Any) -> None:
    """A worker's report about itself."""
    publish_stats(connection, worker, stats(tokens, reported_at, **other))


def stats(tokens: int, reported_at: float, **other: Any) -> WorkerStats:
    given = {"model": "base", "slots": 8, "used": 3, "tokens_per_second": 5.0, "exactness": "exact", **other}
    return WorkerStats(tokens=tokens, reported_at=reported_at, started_at=1000.0, fingerprint="f", **given)


def look(connection: redis.Redis, model: str | None = None) -> Snapshot:
    """A first look."""
    return Gatherer(connection, model).look(SCREEN)


def texts(snapshot: Snapshot) -> dict[str, str]:
    return {job.job_id: job.text for job in snapshot.running}


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


# workers


def test_workers_show_what_they_report(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    announce_worker(connection, "minilab-b")
    announce_worker(connection, "minilab-c", alive=False)
    announce_worker(connection, "minilab-d", alive=False)
    report(connection, "minilab-a", 100, 50.0, used=3, slots=8, tokens_per_second=12.5)
    report(connection, "minilab-c", 100, 50.0)

    gone, up, silent = (snapshot := look(connection)).workers

    assert (gone.name, gone.alive, gone.tokens_per_second) == ("minilab-c", False, None)
    assert (up.name, up.alive, up.used, up.slots, up.tokens_per_second) == ("minilab-a", True, 3, 8, 12.5)
    assert (silent.name, silent.alive, silent.used, silent.tokens_per_second) == ("minilab-b", True, None, None)
    assert snapshot.fleet == Fleet(up=2, gone=1, used=3, slots=8)
    assert [line.name for line in snapshot.models] == ["base"]


def test_an_ordinary_rq_worker_counts_if_it_serves_a_queue_of_ours(connection: redis.Redis) -> None:
    Worker([keys.queue_name("base")], name="plain", connection=connection).register_birth()
    Worker(["default"], name="another", connection=connection).register_birth()

    snapshot = look(connection)

    assert [(worker.name, worker.model, worker.alive) for worker in snapshot.workers] == [("plain", "base", True)]
    assert snapshot.speed.now is None


def test_the_speed_is_what_the_reports_gained(connection: redis.Redis) -> None:
    for worker in ("minilab-a", "minilab-b"):
        announce_worker(connection, worker)
        report(connection, worker, 1000, 50.0)
    gatherer = Gatherer(connection)
    gatherer.look(SCREEN)

    report(connection, "minilab-a", 1500, 52.0)
    report(connection, "minilab-b", 1030, 51.0)
    snapshot = gatherer.look(SCREEN)

    assert [worker.tokens_per_second for worker in snapshot.workers] == [250.0, 30.0]
    assert snapshot.speed.now == 280.0
    assert [sample.tokens_per_second for sample in snapshot.speed.samples] == [280.0]
    assert snapshot.speed.watched > 0


def test_a_speed_holds_until_the_next_report_and_not_for_ever() -> None:
    speedometer = Speedometer()
    speedometer.note(0.0, {"a": stats(0, 50.0)})
    assert speedometer.note(1.0, {"a": stats(100, 51.0)}).now == 100.0

    assert speedometer.note(1.5, {"a": stats(100, 51.0)}).now == 100.0
    assert speedometer.note(1.0 + STALE, {"a": stats(100, 51.0)}).now == 0.0


def test_a_worker_that_exits_takes_its_speed_along_and_no_more() -> None:
    speedometer = Speedometer()
    speedometer.note(0.0, {"a": stats(0, 50.0), "b": stats(0, 50.0)})
    assert speedometer.note(1.0, {"a": stats(100, 51.0), "b": stats(10, 51.0)}).now == 110.0

    speed = speedometer.note(2.0, {"b": stats(20, 52.0)})

    assert [sample.tokens_per_second for sample in speed.samples] == [110.0, 10.0]


def test_only_the_last_minute_is_kept() -> None:
    speedometer = Speedometer()
    for second in range(199):
        speedometer.note(float(second), {"a": stats(second, float(second))})

    speed = speedometer.note(199.0, {"a": stats(199, 199.0)})

    assert [speed.samples[0].at, speed.samples[-1].at, speed.watched] == [139.0, 199.0, 199.0]


# what it costs


def cost_of_a_look(server: redis.Redis) -> tuple[int, int]:
    """Commands, and bytes of their answers, of a second look."""
    gatherer = Gatherer(server)
    gatherer.look(SCREEN)
    before: Any = server.info("all")
    gatherer.look(SCREEN)
    after: Any = server.info("all")
    names = ("total_commands_processed", "total_net_output_bytes")
    commands, size = (after[name] - before[name] for name in names)
    return commands - 1, size - size_of_info(server)


def size_of_info(server: redis.Redis) -> int:
    """Bytes that the server sends for one such question itself."""
    before: Any = server.info("all")
    after: Any = server.info("all")
    return int(after["total_net_output_bytes"] - before["total_net_output_bytes"])


def test_a_look_costs_the_same_however_many_jobs_wait_run_and_have_ended(server: redis.Redis) -> None:
    def add(count: int) -> None:
        queue = queue_of(server, keys.queue_name("base"))
        ids = [f"job-{n:011}" for n in range(count)]
        server.rpush(queue.key, *ids)
        server.zadd(queue.started_job_registry.key, {f"{job_id}:0123456789abcdef": 1.0 for job_id in ids})
        server.zadd(queue.finished_job_registry.key, dict.fromkeys(ids, time.time() + 60))

    submit(server, "x")
    add(100)
    commands, size = cost_of_a_look(server)

    add(100_000)

    more_commands, more_size = cost_of_a_look(server)
    assert more_commands == commands
    assert more_size < size + 1000  # the answers hold larger numbers, and INFO varies a little


def test_a_thousand_workers_are_one_more_command(server: redis.Redis) -> None:
    submit(server, "x")
    commands, _ = cost_of_a_look(server)

    for number in range(1000):
        name = f"minilab-{number}"
        server.sadd("rq:workers", f"rq:worker:{name}")
        server.set(keys.worker_lease(name), "{}")
        report(server, name, 0, 1.0)

    assert cost_of_a_look(server)[0] == commands + 1
    assert look(server).fleet == Fleet(up=1000, used=3000, slots=8000)


def test_no_more_streams_are_read_than_are_shown(server: redis.Redis) -> None:
    for number in range(60):
        begin(server, f"job-{number}", "text")
    server.config_resetstat()

    snapshot = look(server)

    used: Any = server.info("commandstats")
    assert used["cmdstat_xrevrange"]["calls"] == len(snapshot.running) == SCREEN.rows(snapshot.counts).running
    assert snapshot.counts.running == 60
