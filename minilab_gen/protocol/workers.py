"""The workers that Redis knows of, as far as they can be seen from outside."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import redis
from rq import Worker

from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import unix_time
from minilab_gen.protocol.jobs import OUR_WORKERS
from minilab_gen.protocol.worker_stats import WorkerStats, read_stats

_FIELDS: Final = ("queues", "state", "hostname", "pid", "last_heartbeat")
"""Fields of RQ's record of a worker."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it stands."""

    name: str
    alive: bool | None
    """Whether it holds its lease; None for an ordinary RQ worker, which has none."""
    state: str
    queues: tuple[str, ...]
    hostname: str | None
    pid: int | None
    heartbeat_age: float | None
    """Seconds since it was last heard of."""
    stats: WorkerStats | None
    """Its last report about itself; None for one that makes none."""

    @property
    def serves(self) -> bool:
        """Whether jobs can be expected to be taken by it: an ordinary RQ worker counts as long as RQ has a record."""
        return self.alive is not False


def all_workers(connection: redis.Redis) -> list[WorkerView]:
    """The workers of our queues, by name. One that was killed is there until RQ's record of it expires."""
    # Not Worker.all: RQ's worker objects set 415 s as the timeout of the connection that they are given.
    prefix = Worker.redis_worker_namespace_prefix
    names = sorted(record.removeprefix(prefix) for record in Worker.all_keys(connection=connection))
    with connection.pipeline(transaction=False) as pipeline:
        for name in names:
            for field in _FIELDS:
                pipeline.hget(f"{prefix}{name}", field)
            pipeline.exists(keys.worker_lease(name))
        pipeline.time()
        *answers, now = pipeline.execute()
    width = len(_FIELDS) + 1
    records = {name: answers[n * width : (n + 1) * width] for n, name in enumerate(names)}
    ours = {name: record for name, record in records.items() if b"minilab." in (record[0] or b"")}
    stats = read_stats(connection, [name for name in ours if name.startswith(OUR_WORKERS)])
    return [_view(name, record, stats.get(name), unix_time(now)) for name, record in ours.items()]


def _view(name: str, record: list[Any], stats: WorkerStats | None, now: float) -> WorkerView:
    *fields, has_lease = record
    queues, state, hostname, pid, heard = (field.decode(errors="replace") if field else None for field in fields)
    return WorkerView(
        name=name,
        alive=bool(has_lease) if name.startswith(OUR_WORKERS) else None,
        state=state or "unknown",
        queues=tuple((queues or "").split(",")),
        hostname=hostname,
        pid=int(pid) if pid and pid.isdigit() else None,
        heartbeat_age=_age(heard, stats, now),
        stats=stats,
    )


def _age(heard: str | None, stats: WorkerStats | None, now: float) -> float | None:
    """Seconds since the worker's report, which is by the server's clock as ``now`` is; else since RQ's heartbeat."""
    if stats is not None:
        return max(0.0, now - stats.reported_at)
    with contextlib.suppress(ValueError):  # by the clock of the worker's machine
        return max(0.0, now - datetime.fromisoformat(heard or "").timestamp())
    return None
