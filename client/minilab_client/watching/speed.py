"""How fast tokens come, found from what workers report while they are watched.

A worker's speed is what its count of tokens grew by between two of its reports, on its own clock: neither the moments
of the looks nor clocks that differ bend it. Until there are two, what it says of itself serves: a mean over seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from minilab_client.watching.snapshot import WINDOW, Speed, SpeedSample
from minilab_gen.protocol.worker_stats import WorkerStats

STALE: Final = 5.0
"""Seconds after which a report that is not followed by another tells no speed any more; workers report each second."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A worker's last report, as it was seen."""

    at: float
    """When it was first seen, on our clock."""
    stats: WorkerStats
    tokens_per_second: float


class Speedometer:
    """Notes reports, look by look."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._samples: deque[SpeedSample] = deque()
        self._began_at: float | None = None

    def note(self, at: float, reports: Mapping[str, WorkerStats | None]) -> Speed:
        """Take in what the workers that are up report, and tell the speed. ``at`` is in seconds and only grows."""
        self._seen = {name: self._judge(at, self._seen.get(name), stats) for name, stats in reports.items() if stats}
        now = sum(seen.tokens_per_second for seen in self._seen.values()) if self._seen or not reports else None
        if self._began_at is None:
            self._began_at = at
        elif now is not None:
            self._samples.append(SpeedSample(at, now))
        while self._samples and self._samples[0].at < at - WINDOW:
            self._samples.popleft()
        return Speed(now, tuple(self._samples), self._began_at, at)

    def of(self, worker: str) -> float | None:
        """The speed of one worker; None while it is not known."""
        seen = self._seen.get(worker)
        return seen.tokens_per_second if seen else None

    @staticmethod
    def _judge(at: float, before: _Seen | None, stats: WorkerStats) -> _Seen:
        if before is None:
            return _Seen(at, stats, stats.tokens_per_second)
        seconds = stats.reported_at - before.stats.reported_at
        if seconds > 0:
            return _Seen(at, stats, max(0, stats.tokens - before.stats.tokens) / seconds)
        return before if at - before.at < STALE else _Seen(before.at, stats, 0.0)
