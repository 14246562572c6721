"""What one look at the service saw, frozen, so that it can be drawn again at another size.

Everything in it may have been written by another program.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

WINDOW = 60.0
"""Seconds of speed that are kept."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is of each thing, whether it is shown or not."""

    models: int = 0
    workers: int = 0
    running: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model's queues."""

    name: str
    high: int = 0
    normal: int = 0
    low: int = 0
    """Jobs that wait, by priority."""
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    """Jobs that ended so and are still kept."""

    @property
    def queued(self) -> int:
        return self.high + self.normal + self.low

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker. What it has not reported is None."""

    name: str
    model: str
    alive: bool
    used: int | None = None
    slots: int | None = None
    tokens_per_second: float | None = None
    started_at: float | None = None
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers in figures."""

    up: int = 0
    gone: int = 0
    """Those whose lease has expired without a clean exit."""
    used: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that was started and has not ended."""

    job_id: str
    tokens: int = 0
    text: str = ""
    """The end of its text."""
    worker_gone: bool = False
    """Whether it waits for another worker, since the lease of its own has expired."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended."""

    job_id: str
    ended_at: float
    """Unix time in seconds."""
    reason: str
    """The end reason of its stream; RQ's word where the stream has none."""
    succeeded: bool
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """The speed between one look and the look before it."""

    at: float
    """Seconds, on a clock that only tells differences."""
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of all workers together."""

    now: float | None = None
    """None where no worker that is up tells."""
    samples: tuple[SpeedSample, ...] = ()
    """Oldest first."""
    began_at: float = 0.0
    """When the watch began, on the clock of the samples."""
    looked_at: float = 0.0
    """When it looked last."""

    @property
    def watched(self) -> float:
        """Seconds since the watch began."""
        return self.looked_at - self.began_at


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look."""

    taken_at: float
    """Unix time in seconds."""
    models: tuple[ModelLine, ...] = ()
    fleet: Fleet = Fleet()
    workers: tuple[WorkerLine, ...] = ()
    running: tuple[RunningJob, ...] = ()
    ended: tuple[EndedJob, ...] = ()
    """Newest first."""
    speed: Speed = field(default_factory=Speed)
    counts: Counts = Counts()

    @property
    def queued(self) -> int:
        return sum(model.queued for model in self.models)


def line(snapshot: Snapshot) -> str:
    """A look in one line, for people and for `awk`."""
    speed = snapshot.speed.now
    parts = (
        clock(snapshot.taken_at),
        f"queued {snapshot.queued}",
        f"running {snapshot.counts.running}",
        f"tokens/s {'-' if speed is None else round(speed)}",
        f"workers {snapshot.fleet.up}",
    )
    return "  ".join(parts)


def figures(snapshot: Snapshot) -> dict[str, Any]:
    """The whole look in JSON; times are Unix times in seconds."""
    seen = asdict(snapshot)
    speed, counts = seen.pop("speed"), seen.pop("counts")
    totals = {"queued": snapshot.queued, "running_jobs": counts["running"], "tokens_per_second": speed["now"]}
    return {**totals, **seen}


def number(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{round(value):,}".replace(",", " ")


def clock(moment: float) -> str:
    """The local time of a Unix time."""
    return datetime.fromtimestamp(moment, UTC).astimezone().strftime("%H:%M:%S")
