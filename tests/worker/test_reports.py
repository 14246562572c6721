"""What a worker says about itself each second: idle, busy, after an outage, and nothing once it has left in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from chaos.server import BINARY
from minilab_worker.serving import ServedModel
from minilab_worker.telemetry.reporter import REPORT_INTERVAL, SPEED_REPORTS, Reporter
from minilab_worker.worker import Worker
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.worker_stats import WorkerStats, read_stats
from minilab_gen.request import GenerationRequest

StartWorker = Callable[..., Worker]

needs_redis = pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")


def report_of(connection: redis.Redis, worker: str) -> WorkerStats | None:
    return read_stats(connection, [worker]).get(worker)


def test_an_idle_worker_reports_its_model_and_its_free_places(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    before = time.time()
    worker = start_worker(max_batch=3)
    wait_until(lambda: report_of(server, worker.name))

    report = report_of(server, worker.name)

    assert report is not None
    card = served.card
    assert (report.model, report.exactness, report.fingerprint) == (card.name, card.exactness, card.fingerprint)
    assert (report.slots, report.used, report.tokens, report.tokens_per_second) == (3, 0, 0, 0.0)
    assert before <= report.started_at <= report.reported_at <= time.time()
    assert 0 < server.ttl(keys.worker_stats(worker.name)) <= keys.STATS_TTL


def test_an_idle_worker_reports_again_and_again(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    wait_until(lambda: report_of(server, worker.name))
    first = report_of(server, worker.name)

    wait_until(lambda: report_of(server, worker.name) != first)


def test_a_report_counts_every_token_that_was_chosen(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    for tokens in (60, 13, 1):
        enqueue(server, GenerationRequest((5, 6), tokens), Submission())

    def all_counted() -> bool:
        report = report_of(server, worker.name)
        return report is not None and report.tokens == 74 and report.tokens_per_second > 0

    wait_until(all_counted)


def test_the_report_of_a_worker_that_leaves_in_order_is_gone(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    wait_until(lambda: report_of(server, worker.name))

    worker.stop()

    wait_until(lambda: not server.exists(keys.worker_stats(worker.name)))


def test_the_speed_is_the_mean_over_the_last_reports(connection: redis.Redis, served: ServedModel) -> None:
    now = 100.0
    reporter = Reporter(connection, "minilab-a", served.card, 4, clock=lambda: now)

    def speed_after(seconds: int, tokens: int) -> float:
        nonlocal now
        for _ in range(seconds):
            now += REPORT_INTERVAL
            reporter.report_if_due(2, tokens)
        report = report_of(connection, "minilab-a")
        assert report is not None
        return report.tokens_per_second

    assert speed_after(1, 300) == 300
    assert speed_after(2, 300) == 100
    assert speed_after(SPEED_REPORTS, 300) == 0


def test_a_report_that_is_not_due_is_not_sent(connection: redis.Redis, served: ServedModel) -> None:
    reporter = Reporter(connection, "minilab-a", served.card, 4, clock=lambda: 100.0)
    reporter.report_if_due(1, 5)

    reporter.report_if_due(2, 6)

    report = report_of(connection, "minilab-a")
    assert report is not None
    assert (report.used, report.tokens) == (1, 5)


def reports(service: OwnService) -> list[WorkerStats]:
    """What stands in its Redis."""
    prefix = keys.worker_stats("")
    found: Any = service.connection.keys(f"{prefix}*")
    return list(read_stats(service.connection, [key.decode().removeprefix(prefix) for key in found]).values())


@needs_redis
def test_the_report_of_a_killed_worker_tells_what_it_was_doing(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait()
    for _ in range(100):  # enough to be busy for more than one report
        own_service.submit()
    wait_until(lambda: reports(own_service) and reports(own_service)[0].used, LIMIT)

    worker.kill()
    wait_until(lambda: not own_service.connection.keys(keys.worker_lease("*")), LIMIT)

    (report,) = reports(own_service)
    assert 0 < report.used <= report.slots


@needs_redis
def test_a_worker_reports_again_after_redis_was_away(own_service: OwnService) -> None:
    own_service.fleet.start_and_wait()
    wait_until(lambda: own_service.connection.keys(keys.worker_stats("*")), LIMIT)

    own_service.server.kill()
    own_service.server.start()
    back = time.time()

    wait_until(lambda: reports(own_service) and reports(own_service)[0].reported_at > back, LIMIT)
    job_id = own_service.submit()
    own_service.wait_for_status(job_id, "finished")
    own_service.assert_answered(job_id, LONG)
