"""What tests of a watch share: jobs as a worker moves them, and looks at them. It must not hold a test."""

from __future__ import annotations

import time
from typing import Any

import redis
from minilab_client.watching.gathering import Gatherer
from minilab_client.watching.layout import Layout
from minilab_client.watching.snapshot import Snapshot

from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats
from support.client_program import start, submit, write

SCREEN = Layout(40)


def begin(connection: redis.Redis, job_id: str, *texts: str, worker: str = "minilab-test") -> None:
    """A job that a worker runs, with these tokens so far."""
    submit(connection, job_id)
    start(connection, job_id)
    job = fetch(connection, job_id)
    connection.hset(job.key, "worker_name", worker)
    connection.zadd(job.started_job_registry.key, {f"{job_id}:0123456789abcdef": time.time() + 60})
    write(connection, job_id, *texts)


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
