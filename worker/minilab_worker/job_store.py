"""The port to the job queue: what a worker asks of it, and the values that cross."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import Event
from minilab_gen.request import GenerationRequest

FINGERPRINT_WAIT: Final = 300.0
"""Seconds for which a half-written stream waits for a worker whose model gives equal tokens: time to start one."""


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that a worker has started: RQ calls this an execution."""

    job_id: str
    execution_id: str
    queue: str
    worker: str
    """Empty where the store does not know any more."""
    owners_key: str
    """A sorted set in Redis in which the execution id stands while the worker owns the job."""
    started_at: float = 0.0
    """Unix time, by the worker's clock."""
    is_overdue: bool = False
    """Whether the heartbeats that RQ itself waits for have stopped."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that was taken from its queue and has not been started."""

    job_id: str
    queue: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker has just started, with all that was known of it at that moment."""

    job: StartedJob
    request: GenerationRequest | None
    """None where the job holds none that can run."""
    refusal: str | None = None
    """Why there is no request."""
    stream: tuple[Event, ...] = ()
    """What the job's token stream holds."""
    timeout: int = keys.DEFAULT_TIMEOUT
    """Seconds that the job may run."""
    submitted_at: float | None = None
    """Unix time, by the client's clock; None where it was not noted."""
    has_expired: bool = False
    """Whether it has waited for longer than its time to live."""
    is_cancelled: bool = False
    expired_leases: int = 0
    """Workers whose leases expired while they ran it."""
    begun_by: str | None = None
    """The fingerprint of the model that began it and for which it has waited in vain; None if this worker may continue
    it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """How a started job ended: with a result, with a failure, or cancelled where there is neither."""

    job: StartedJob
    result: dict[str, Any] | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    """What came out when a worker renewed its lease."""

    is_complete: bool
    """Whether every job that it runs is still its own."""
    cancelled: tuple[str, ...] = ()
    """The ids of jobs that were cancelled in the store itself."""


class JobStore(Protocol):
    """A queue of jobs, and the record of which worker runs which of them.

    Every method raises redis.RedisError while the store is unavailable. What was asked then may have been done.
    """

    @property
    def worker(self) -> str:
        """The name of this worker."""
        ...

    def open(self, on_stop: Callable[[str], None]) -> None:
        """Register the worker and take the lease. ``on_stop`` is called with the id of a job that is to be stopped.

        May be called again where it raised.
        """
        ...

    def close(self) -> None:
        """Give the lease back and unregister."""
        ...

    def claim(self, limit: int, wait: float) -> list[Claim]:
        """Start up to ``limit`` queued jobs, high priority first; with none queued, wait up to ``wait`` seconds."""
        ...

    def renew(self, jobs: Sequence[StartedJob]) -> Renewal:
        """Renew the worker's lease, and the heartbeats of the worker and of the jobs that it runs."""
        ...

    def owned(self, jobs: Sequence[StartedJob]) -> set[str]:
        """The execution ids of those jobs that no other worker has taken over."""
        ...

    def finish(self, completions: Sequence[Completion]) -> set[str]:
        """Record how jobs ended. Those that another worker has taken over are left to it.

        Gives the execution ids of jobs whose stream lacks its terminal entry, for example since a failover lost it.
        They are not recorded, since a job is never seen as finished without its end.
        """
        ...

    def survived(self, jobs: Sequence[StartedJob]) -> None:
        """Take back what was counted as an expired lease: the worker only stood still."""
        ...

    def alive(self, workers: set[str]) -> set[str]:
        """Those of the workers that hold their lease."""
        ...

    def started(self) -> list[StartedJob]:
        """The started jobs of all workers on the same queues, in the order of their start as far as it is known."""
        ...

    def unstarted(self) -> list[QueuedJob]:
        """Jobs that some worker has taken from their queue and not started."""
        ...

    def requeue(self, job: StartedJob, *, if_expired: bool) -> bool:
        """Take a job from its worker and put it at the head of its queue; False where another worker was faster.

        With ``if_expired`` only while that worker's lease has expired, which is counted against the job.
        """
        ...

    def requeue_unstarted(self, job: QueuedJob) -> bool:
        """Put a job that was never started back; False where it was started or put back meanwhile."""
        ...

    def trim(self) -> None:
        """Remove what has expired from the records of ended jobs."""
        ...
