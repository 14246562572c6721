"""The workers of a service and how fast they are, from their leases and their reports.

A worker's speed is what its count of tokens grew by between two of its reports, on its own clock: neither the moments
of the looks nor clocks that differ bend it. Until there are two, what it says of itself serves: a mean over seconds.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rq import Worker

from minilab_client.watching.snapshot import WINDOW, Fleet, Speed, SpeedSample, WorkerLine
from minilab_client.watching.survey import text_of
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import OUR_WORKERS
from minilab_gen.protocol.worker_stats import WorkerStats, decode_stats

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


@dataclass(frozen=True, slots=True)
class _SeenWorker:
    """A worker as Redis tells of it."""

    name: str
    alive: bool
    model: str
    stats: WorkerStats | None = None


class Workforce:
    """Looks at workers: at all of ours in one command, and at each ordinary RQ worker in one."""

    def __init__(self, model: str | None) -> None:
        """``model``: only the workers that serve it."""
        self._model = model
        self._ours: list[str] = []
        self._others: list[str] = []
        self._speedometer = Speedometer()
        self.lines: tuple[WorkerLine, ...] = ()
        """Those that are gone first, then by name."""
        self.speed = Speed()

    @property
    def fleet(self) -> Fleet:
        """All lines in figures."""
        up = [line for line in self.lines if line.alive]
        return Fleet(
            up=len(up),
            gone=len(self.lines) - len(up),
            used=sum(line.used or 0 for line in up),
            slots=sum(line.slots or 0 for line in up),
        )

    def ask(self, pipeline: Any, records: Iterable[str]) -> None:
        """Ask about the workers with these keys in RQ's records."""
        names = [record.removeprefix(Worker.redis_worker_namespace_prefix) for record in records]
        self._ours = [name for name in names if name.startswith(OUR_WORKERS)]
        self._others = [name for name in names if not name.startswith(OUR_WORKERS)]
        if self._ours:
            pipeline.mget([*map(keys.worker_lease, self._ours), *map(keys.worker_stats, self._ours)])
        for name in self._others:
            pipeline.hget(f"{Worker.redis_worker_namespace_prefix}{name}", "queues")

    def read(self, answers: Iterator[Any], at: float) -> None:
        """Take the answers; ``at`` is the moment in seconds, on a clock that only grows."""
        texts = next(answers) if self._ours else []
        leases, reports = texts[: len(self._ours)], texts[len(self._ours) :]
        found = [_ours(*worker) for worker in zip(self._ours, leases, reports, strict=True)]
        found += [_other(name, next(answers)) for name in self._others]
        shown = [worker for worker in found if worker is not None and self._model in (None, worker.model)]
        self.speed = self._speedometer.note(at, {worker.name: worker.stats for worker in shown if worker.alive})
        self.lines = tuple(sorted(map(self._line, shown), key=lambda line: (line.alive, line.name)))

    def _line(self, worker: _SeenWorker) -> WorkerLine:
        stats = worker.stats
        if stats is None:
            return WorkerLine(worker.name, worker.model, worker.alive)
        return WorkerLine(
            name=worker.name,
            model=worker.model,
            alive=worker.alive,
            used=stats.used,
            slots=stats.slots,
            tokens_per_second=self._speedometer.of(worker.name) if worker.alive else None,
            started_at=stats.started_at,
        )


def _ours(name: str, lease: bytes | None, report: bytes | None) -> _SeenWorker | None:
    """None for one of which only the name remains in RQ's records."""
    stats = decode_stats(report)
    if stats is not None:
        return _SeenWorker(name, lease is not None, stats.model, stats)
    return None if lease is None else _SeenWorker(name, alive=True, model=_model_of(_queues_in(lease)) or "")


def _other(name: str, queues: bytes | None) -> _SeenWorker | None:
    """None for one that is not there any more, or serves no queue of ours."""
    model = _model_of(text_of(queues).split(",")) if queues else None
    return None if model is None else _SeenWorker(name, alive=True, model=model)


def _queues_in(lease: bytes) -> list[str]:
    try:
        return [str(name) for name in json.loads(lease)["queues"]]
    except (ValueError, TypeError, KeyError):  # of another version; that it is there says enough
        return []


def _model_of(queues: Iterable[str]) -> str | None:
    """The model whose queues these are."""
    return next((parts[0] for name in queues if (parts := keys.queue_parts(name))), None)
