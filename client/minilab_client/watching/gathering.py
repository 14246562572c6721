"""Makes a snapshot of the service in three round trips: the time, what there is, what fits the screen. Read-only."""

from __future__ import annotations

import time
from collections.abc import Collection

import redis

from minilab_client.watching.layout import Layout
from minilab_client.watching.snapshot import Counts, ModelLine, Snapshot
from minilab_client.watching.streams import EndedJobs, RunningJobs
from minilab_client.watching.survey import Survey, readable, survey
from minilab_client.watching.workforce import Workforce
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time


class Gatherer:
    """Looks at one service again and again, and remembers what it need not read twice."""

    def __init__(self, connection: redis.Redis, model: str | None = None) -> None:
        """``model``: look at the queues and workers of this one only."""
        self._connection, self._model = connection, model
        self._queues: tuple[str, ...] = tuple(keys.queue_names(model)) if model else ()
        self._workforce = Workforce(model)
        self._running = RunningJobs()
        self._ended = EndedJobs()

    def look(self, layout: Layout) -> Snapshot:
        """What there is now, and as many of its jobs as fit the screen. Raises what redis-py raises."""
        now = server_time(self._connection)
        found = self._survey(layout.height, now)
        rows = layout.rows(_counts(len(found.models), len(found.workers), found.models.values()))
        workforce = self._workforce
        with self._connection.pipeline(transaction=False) as pipeline:
            workforce.ask(pipeline, found.workers)
            self._running.ask(pipeline, found.running[: rows.running])
            self._ended.ask(pipeline, found.endings[: rows.ended])
            answers = readable(pipeline.execute(raise_on_error=False))
        workforce.read(answers, time.monotonic())
        up = {line.name for line in workforce.lines if line.alive}
        running = self._running.read(answers, up.__contains__)
        ended = self._ended.read(answers)
        queued = {parts[0] for name in self._queues if (parts := keys.queue_parts(name))}
        idle = {line.model for line in workforce.lines} - queued - {""}
        models = {name: ModelLine(name) for name in idle} | found.models
        return Snapshot(
            taken_at=now,
            models=tuple(models[name] for name in sorted(models)),
            fleet=workforce.fleet,
            workers=workforce.lines,
            running=running,
            ended=ended,
            speed=workforce.speed,
            counts=_counts(len(queued | idle), len(workforce.lines), models.values()),
        )

    def _survey(self, most: int, now: float) -> Survey:
        found = survey(self._connection, self._queues, self._running.followed, most, now)
        if self._model is None and found.queues != self._queues:  # there are new ones, or this is the first look
            self._queues = found.queues
            found = survey(self._connection, self._queues, self._running.followed, most, now)
        return found


def _counts(models: int, workers: int, lines: Collection[ModelLine]) -> Counts:
    return Counts(
        models=models,
        workers=workers,
        running=sum(line.running for line in lines),
        ended=sum(line.ended for line in lines),
    )
