"""Who holds which job in RQ's books, and taking one away from him. It must not know when that is right.

Whatever is given back goes to the head of its queue in one transaction, watched on the records of its job, which
everybody touches who does anything with it: so of several that give it back, or start it, one succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.queue import Queue

from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import unix_time


@dataclass(frozen=True, slots=True)
class Holding:
    """An execution in RQ's books: a job that somebody runs, or ran when he died."""

    queue: Queue
    job_id: str
    execution_id: str
    worker: str
    """Empty where the execution itself has expired: nobody has cared for it for long."""
    overdue: bool
    """Whether RQ's own heartbeat of it has run out."""

    @property
    def member(self) -> str:
        """How the registry of started jobs calls it."""
        return f"{self.job_id}:{self.execution_id}"


class Holdings:
    """All executions and all claimed jobs of some queues, whoever's."""

    def __init__(self, connection: redis.Redis, queues: Sequence[Queue]) -> None:
        self._connection, self._queues = connection, queues

    def all(self) -> list[Holding]:
        """Every execution in the books, in the order in which they were started, as far as that is known."""
        found: list[tuple[Queue, Execution, float]] = []
        for queue in self._queues:
            members: Any = self._connection.zrange(queue.started_job_registry.key, 0, -1, withscores=True)
            for member, expiry in members:
                job_id, _, execution_id = member.decode().partition(":")
                found.append((queue, Execution(execution_id, job_id, self._connection), expiry))
        with self._connection.pipeline(transaction=False) as pipeline:
            for _, execution, _ in found:
                pipeline.hget(execution.key, "worker_name")
            pipeline.time()
            *workers, now = pipeline.execute()
        return [
            Holding(queue, execution.job_id, execution.id, (worker or b"").decode(), expiry < unix_time(now))
            for (queue, execution, expiry), worker in zip(found, workers, strict=True)
        ]

    def put_back(self, holding: Holding, *, if_dead: bool) -> bool:
        """Take a job from whoever holds it and put it at the head of its queue; False when another was quicker.

        With ``if_dead`` only while the holder's lease is gone; that also counts as one death of the job's worker.
        """
        registry, lease = holding.queue.started_job_registry.key, keys.worker_lease(holding.worker)
        record = Job.key_for(holding.job_id)
        with self._connection.pipeline() as pipeline:
            try:
                pipeline.watch(record, lease)
                if pipeline.zscore(registry, holding.member) is None or (if_dead and pipeline.exists(lease)):
                    return False
                exists = bool(pipeline.exists(record))
                pipeline.multi()
                self._remove_in(pipeline, holding)
                if exists:  # else the job has expired; only the entry was left
                    pipeline.hset(record, "status", JobStatus.QUEUED.value)
                    pipeline.lpush(holding.queue.key, holding.job_id)
                if exists and if_dead:
                    pipeline.incr(keys.deaths(holding.job_id))
                    pipeline.expire(keys.deaths(holding.job_id), keys.RETENTION)
                pipeline.execute()
            except redis.WatchError:
                return False
        return exists

    def unstarted(self) -> list[tuple[Queue, str]]:
        """Jobs that some worker has claimed and not started."""
        found: list[tuple[Queue, str]] = []
        for queue in self._queues:
            entries: Any = self._connection.lrange(queue.intermediate_queue_key, 0, -1)
            found += [(queue, entry.decode()) for entry in entries if entry.isascii()]  # others are no job ids
        return found

    def put_back_unstarted(self, queue: Queue, job_id: str) -> bool:
        """Return such a job to the head of its queue; False when it was started or returned meanwhile."""
        record = Job.key_for(job_id)
        with self._connection.pipeline() as pipeline:
            try:
                pipeline.watch(record)
                if pipeline.lpos(queue.intermediate_queue_key, job_id) is None:
                    return False
                kind: Any = pipeline.type(record)
                status: Any = pipeline.hget(record, "status") if kind == b"hash" else None
                pipeline.multi()
                pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
                if kind != b"none":  # else the job has expired
                    pipeline.lpush(queue.key, job_id)
                if status is not None:
                    pipeline.hset(record, "status", status)  # no change, but seen by those who watch the record
                pipeline.execute()
            except redis.WatchError:
                return False
        return True

    def _remove_in(self, pipeline: Any, holding: Holding) -> None:
        """What :meth:`rq.executions.Execution.delete` does, without a job's record."""
        execution = Execution(holding.execution_id, holding.job_id, self._connection, holding.worker)
        pipeline.delete(execution.key)
        pipeline.zrem(holding.queue.started_job_registry.key, holding.member)
        pipeline.zrem(ExecutionRegistry(holding.job_id, self._connection).key, holding.execution_id)
        if holding.worker:
            pipeline.srem(execution.worker_executions_key, holding.member)
