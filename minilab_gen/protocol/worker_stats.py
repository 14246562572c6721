"""What each worker reports about itself, once a second: slots, tokens, when.

The report lies beside the lease, which alone says whether a worker is alive: a report may be old.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import redis

from minilab_gen.protocol import keys


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """A worker's report."""

    model: str
    slots: int
    """Jobs that it can run at a time."""
    used: int
    """Slots in use."""
    tokens: int
    """Tokens that it has chosen since it started."""
    tokens_per_second: float
    """Its speed over the last seconds before the report, so that one look at it is enough; 0 for a worker at rest."""
    exactness: str
    """What its check of the kernels has found."""
    fingerprint: str
    """That of its model: workers of one model that show different ones give different tokens."""
    started_at: float
    """Unix time in seconds, by the server's clock."""
    reported_at: float
    """The same."""


def publish_stats(connection: redis.Redis, worker: str, stats: WorkerStats) -> None:
    """Replace a worker's report; it stays for a few minutes without another."""
    connection.set(keys.worker_stats(worker), json.dumps(asdict(stats), allow_nan=False), ex=keys.STATS_TTL)


def read_stats(connection: redis.Redis, workers: Iterable[str]) -> dict[str, WorkerStats]:
    """The reports of those workers that have one."""
    names = list(workers)
    texts: Any = connection.mget([keys.worker_stats(name) for name in names]) if names else []
    found = ((name, decode_stats(text)) for name, text in zip(names, texts, strict=True))
    return {name: stats for name, stats in found if stats is not None}


def decode_stats(text: bytes | None) -> WorkerStats | None:
    """A report as it lies in Redis; None where there is none, or one of another version."""
    try:
        return WorkerStats(**json.loads(text or b""))
    except (ValueError, TypeError):
        return None
