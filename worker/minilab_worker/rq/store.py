"""The job store on RQ: its queues, registries and records, in Redis."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import redis
from rq.job import Job, JobStatus
from rq.utils import now, utcformat

from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time, unix_time
from minilab_worker.job_store import Claim, Completion, QueuedJob, Renewal, StartedJob
from minilab_worker.rq.claims import HEARTBEAT_TTL, Claims
from minilab_worker.rq.completions import Completions
from minilab_worker.rq.started_jobs import StartedJobs, execution_key, member_of, started_key
from minilab_worker.rq.worker import RqWorker


class RqJobStore:
    """What one worker does with RQ. It remembers no job: which ones the worker holds, its caller says."""

    def __init__(self, connection: redis.Redis, queues: Sequence[str], lease: int, fingerprint: str) -> None:
        """``connection`` becomes the store's own: it never sends a command twice. ``lease`` is in seconds."""
        self._connection, self._lease = connection, lease
        self._worker = RqWorker(connection, queues, lease)
        self._claims = Claims(self._worker, lease, fingerprint)
        self._completions = Completions(self._worker)
        self._started = StartedJobs(connection, self._worker.queues)

    @property
    def worker(self) -> str:
        """The name of this worker."""
        return str(self._worker.name)

    def open(self, on_stop: Callable[[str], None]) -> None:
        """Register, listen to RQ's commands, take the lease."""
        self._worker.on_stop = on_stop
        self._worker.open()
        self.renew([])

    def close(self) -> None:
        """Give the lease back, unregister and close the connection, as far as Redis lets it."""
        with contextlib.suppress(redis.RedisError):
            self._connection.delete(keys.worker_lease(self.worker), keys.worker_stats(self.worker))
            self._worker.close()
        self._connection.close()

    def claim(self, limit: int, wait: float) -> list[Claim]:
        """Start queued jobs, high priority first."""
        return self._claims.claim(limit, wait)

    def renew(self, jobs: Sequence[StartedJob]) -> Renewal:
        """Renew the lease and RQ's heartbeats of the worker and of every job."""
        with self._connection.pipeline() as pipeline:
            state = json.dumps({"running": len(jobs), "queues": self._worker.queue_names()})
            pipeline.set(keys.worker_lease(self.worker), state, ex=self._lease, get=True)
            for job in jobs:
                pipeline.zscore(job.owners_key, job.execution_id)
                pipeline.hget(Job.key_for(job.job_id), "status")
            pipeline.time()
            lease_before, *answers, moment = pipeline.execute()
        # With the lease renewed no worker takes any of these away, so that this writes to no job of another worker.
        owned = [job for job, score in zip(jobs, answers[::2], strict=True) if score is not None]
        self._beat(owned, unix_time(moment), is_registered=lease_before is not None)
        cancelled = JobStatus.CANCELED.value.encode()
        stopped = [job.job_id for job, status in zip(jobs, answers[1::2], strict=True) if status == cancelled]
        return Renewal(len(owned) == len(jobs), tuple(stopped))

    def owned(self, jobs: Sequence[StartedJob]) -> set[str]:
        """The execution ids of those jobs that stand in RQ's registry of their executions."""
        return self._started.owned(jobs)

    def finish(self, completions: Sequence[Completion]) -> set[str]:
        """Record how jobs ended."""
        return self._completions.record(completions)

    def survived(self, jobs: Sequence[StartedJob]) -> None:
        """Take back what was counted as an expired lease."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for job in jobs:
                pipeline.decr(keys.expired_leases(job.job_id))
                pipeline.expire(keys.expired_leases(job.job_id), keys.RETENTION)
            pipeline.execute()

    def alive(self, workers: set[str]) -> set[str]:
        """Those of the workers that hold their lease."""
        names = sorted(workers)
        leases: Any = self._connection.mget([keys.worker_lease(name) for name in names]) if names else []
        return {name for name, lease in zip(names, leases, strict=True) if lease is not None}

    def started(self) -> list[StartedJob]:
        """The started jobs of all workers on the same queues."""
        return self._started.all()

    def unstarted(self) -> list[QueuedJob]:
        """Jobs in RQ's intermediate queues."""
        return self._started.unstarted()

    def requeue(self, job: StartedJob, *, if_expired: bool) -> bool:
        """Take a job from its worker and put it at the head of its queue."""
        return self._started.requeue(job, if_expired=if_expired)

    def requeue_unstarted(self, job: QueuedJob) -> bool:
        """Put a job in an intermediate queue back."""
        return self._started.requeue_unstarted(job)

    def trim(self) -> None:
        """Remove ended jobs whose records have expired from the registries, as RQ's own workers do now and then."""
        moment = server_time(self._connection)
        with self._connection.pipeline(transaction=False) as pipeline:
            for queue in self._worker.queues:
                for registry in (queue.finished_job_registry, queue.failed_job_registry):  # by when each job expires
                    pipeline.zremrangebyscore(registry.key, "-inf", moment)
                # By when each was cancelled, and these RQ keeps for ever.
                pipeline.zremrangebyscore(queue.canceled_job_registry.key, "-inf", moment - keys.RETENTION)
            pipeline.execute()

    def _beat(self, jobs: Sequence[StartedJob], moment: float, *, is_registered: bool) -> None:
        with self._connection.pipeline() as pipeline:
            if not is_registered:
                self._worker.register(pipeline)
            self._worker.heartbeat(pipeline=pipeline)
            for job in jobs:
                _beat_for(job, moment, pipeline)
            pipeline.execute()


def _beat_for(job: StartedJob, moment: float, pipeline: Any) -> None:
    """RQ's heartbeat of a job. It only lengthens what is there: meanwhile the recorder may have removed it."""
    pipeline.hset(Job.key_for(job.job_id), "last_heartbeat", utcformat(now()))
    pipeline.expire(execution_key(job), HEARTBEAT_TTL)
    pipeline.zadd(started_key(job.queue), {member_of(job): moment + HEARTBEAT_TTL}, xx=True)
    pipeline.zadd(job.owners_key, {job.execution_id: moment + HEARTBEAT_TTL + 60}, xx=True)
    pipeline.expire(job.owners_key, HEARTBEAT_TTL + 60)
