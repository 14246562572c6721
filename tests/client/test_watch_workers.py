"""What a watch sees of workers and of their speed, and what its looks cost Redis. No terminal here."""

from __future__ import annotations

import time
from typing import Any

import redis
from minilab_client.watching.gathering import Gatherer
from minilab_client.watching.snapshot import Fleet
from minilab_client.watching.workforce import STALE, Speedometer
from rq import Worker
from support.client_program import announce_worker, submit
from support.watching import SCREEN, begin, look, report, stats

from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import queue_of

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
