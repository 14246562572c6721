"""Reports once a second what this worker does: slots, tokens, speed.

The main thread's to call, which is never far from its next look at Redis, so that the engine's loses no time over it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import redis

from minilab_gen.protocol.cards import ModelCard
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats

REPORT_INTERVAL: Final = 1.0
"""Seconds between two reports: what a reader lags behind at most. One costs a SET of 300 bytes."""

SPEED_REPORTS: Final = 10
"""Reports over which the speed is the mean: short enough to follow the load, long enough to be read."""


class Reporter:
    """Publishes the reports of one worker."""

    def __init__(
        self,
        connection: redis.Redis,
        worker: str,
        card: ModelCard,
        slots: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._worker = connection, worker
        self._card, self._slots = card, slots
        self._clock = clock
        self._started_at: float | None = None
        self._next_report = 0.0
        self._counted: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=SPEED_REPORTS + 1)
        """When how many tokens had been chosen, oldest first."""

    def report_if_due(self, used: int, tokens: int) -> None:
        """Publish how many slots are used and how many tokens were chosen so far. Raises redis.RedisError."""
        now = self._clock()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_INTERVAL
        self._counted.append((now, tokens))
        moment = server_time(self._connection)
        self._started_at = self._started_at or moment
        stats = WorkerStats(
            model=self._card.name,
            slots=self._slots,
            used=used,
            tokens=tokens,
            tokens_per_second=round(self._speed(), 1),
            exactness=self._card.exactness,
            fingerprint=self._card.fingerprint,
            started_at=self._started_at,
            reported_at=moment,
        )
        publish_stats(self._connection, self._worker, stats)

    def _speed(self) -> float:
        (then, before), (now, tokens) = self._counted[0], self._counted[-1]
        return (tokens - before) / (now - then) if now > then else 0.0
