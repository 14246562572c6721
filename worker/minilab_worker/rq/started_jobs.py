"""Which worker has started which job in RQ's registries, and taking a job from its worker.

Whatever is requeued goes to the head of its queue in one transaction, watched on the record of its job, which changes
with everything that is done to the job: of several workers that requeue or start it, one succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis
from rq.executions import Execution, ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import StartedJobRegistry

from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_worker.job_store import QueuedJob, StartedJob


class StartedJobs:
    """The started jobs of some queues, and those that are claimed and not yet started, of all workers."""

    def __init__(self, connection: redis.Redis, queues: Sequence[Queue]) -> None:
        self._connection, self._queues = connection, queues

    def all(self) -> list[StartedJob]:
        """Every started job, in the order of the start as far as that is known."""
        now = server_time(self._connection)
        entries = [
            (queue.name, *member.decode().partition(":")[::2], expiry < now)
            for queue in self._queues
            for member, expiry in self._members(queue)
        ]
        with self._connection.pipeline(transaction=False) as pipeline:
            for _, job_id, execution_id, _ in entries:
                pipeline.hget(self._execution(job_id, execution_id).key, "worker_name")
            workers = pipeline.execute()
        return [
            StartedJob(job_id, execution_id, queue, (worker or b"").decode(), owners_key(job_id), 0.0, is_overdue)
            for (queue, job_id, execution_id, is_overdue), worker in zip(entries, workers, strict=True)
        ]

    def owned(self, jobs: Iterable[StartedJob]) -> set[str]:
        """The execution ids of those jobs that are still in their worker's hands."""
        asked = list(jobs)
        with self._connection.pipeline(transaction=False) as pipeline:
            for job in asked:
                pipeline.zscore(job.owners_key, job.execution_id)
            scores = pipeline.execute()
        return {job.execution_id for job, score in zip(asked, scores, strict=True) if score is not None}

    def requeue(self, job: StartedJob, *, if_expired: bool) -> bool:
        """Take a job from its worker and put it at the head of its queue; False when another worker was faster.

        With ``if_expired`` only while the worker's lease has expired, which is counted against the job.
        """
        registry, lease = started_key(job.queue), keys.worker_lease(job.worker)
        record = Job.key_for(job.job_id)
        with self._connection.pipeline() as pipeline:
            try:
                pipeline.watch(record, lease)
                is_started = pipeline.zscore(registry, member_of(job)) is not None
                if not is_started or (if_expired and pipeline.exists(lease)):
                    return False
                exists = bool(pipeline.exists(record))
                pipeline.multi()
                self._remove_in(pipeline, job)
                if exists:  # else the job has expired; only the entry was left
                    pipeline.hset(record, "status", JobStatus.QUEUED.value)
                    pipeline.lpush(Queue.redis_queue_namespace_prefix + job.queue, job.job_id)
                if exists and if_expired:
                    pipeline.incr(keys.expired_leases(job.job_id))
                    pipeline.expire(keys.expired_leases(job.job_id), keys.RETENTION)
                pipeline.execute()
            except redis.WatchError:
                return False
        return exists

    def unstarted(self) -> list[QueuedJob]:
        """Jobs that some worker has claimed and not started."""
        found: list[QueuedJob] = []
        for queue in self._queues:
            entries: Any = self._connection.lrange(queue.intermediate_queue_key, 0, -1)
            found += [QueuedJob(entry.decode(), queue.name) for entry in entries if entry.isascii()]
        return found

    def requeue_unstarted(self, job: QueuedJob) -> bool:
        """Put such a job back at the head of its queue; False when it was started or put back meanwhile."""
        record, intermediate = Job.key_for(job.job_id), intermediate_key(job.queue)
        with self._connection.pipeline() as pipeline:
            try:
                pipeline.watch(record)
                if pipeline.lpos(intermediate, job.job_id) is None:
                    return False
                kind: Any = pipeline.type(record)
                status: Any = pipeline.hget(record, "status") if kind == b"hash" else None
                pipeline.multi()
                pipeline.lrem(intermediate, 1, job.job_id)
                if kind != b"none":  # else the job has expired
                    pipeline.lpush(Queue.redis_queue_namespace_prefix + job.queue, job.job_id)
                if status is not None:
                    pipeline.hset(record, "status", status)  # no change, but seen by others that watch the record
                pipeline.execute()
            except redis.WatchError:
                return False
        return True

    def _members(self, queue: Queue) -> list[tuple[bytes, float]]:
        found: Any = self._connection.zrange(queue.started_job_registry.key, 0, -1, withscores=True)
        return list(found)

    def _execution(self, job_id: str, execution_id: str, worker: str = "") -> Execution:
        return Execution(execution_id, job_id, self._connection, worker)

    def _remove_in(self, pipeline: Any, job: StartedJob) -> None:
        """What :meth:`rq.executions.Execution.delete` does, without a job's record."""
        execution = self._execution(job.job_id, job.execution_id, job.worker)
        pipeline.delete(execution.key)
        pipeline.zrem(started_key(job.queue), member_of(job))
        pipeline.zrem(job.owners_key, job.execution_id)
        if job.worker:
            pipeline.srem(execution.worker_executions_key, member_of(job))


def owners_key(job_id: str) -> str:
    """RQ's registry of a job's executions."""
    return ExecutionRegistry.key_template.format(job_id)


def started_key(queue: str) -> str:
    """RQ's registry of the started jobs of a queue."""
    return StartedJobRegistry.key_template.format(queue)


def execution_key(job: StartedJob) -> str:
    """RQ's record of an execution."""
    return f"rq:execution:{member_of(job)}"


def intermediate_key(queue: str) -> str:
    """Where RQ keeps an id between its queue and its start."""
    return IntermediateQueue.get_intermediate_queue_key(Queue.redis_queue_namespace_prefix + queue)


def member_of(job: StartedJob) -> str:
    """How the registry of started jobs calls it."""
    return f"{job.job_id}:{job.execution_id}"
