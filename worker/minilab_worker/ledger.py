"""RQ's books, kept by RQ's own methods for many jobs at a time. This is the one file that touches RQ's insides.

It must not know about models, tokens or threads. A :class:`Ledger` is an RQ worker that never forks and never performs
a job itself: it claims jobs, holds an execution for each, and records how each ended. Many jobs share one round trip,
because RQ's methods take a pipeline. What RQ does for few jobs only (callbacks, webhooks, repeats, dependents) is left
to its own code, job by job.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.command import parse_payload
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import CanceledJobRegistry
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty
from rq.utils import now
from rq.worker import BaseWorker, WorkerStatus

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, decode_entry
from minilab_gen.protocol.jobs import OUR_WORKERS
from minilab_gen.protocol.streams import publish

_log = logging.getLogger(__name__)

CLAIM_AT_ONCE: Final = 16
"""Jobs in one claim: enough to fill a worker in a few round trips, few enough not to delay their first tokens."""

_HEARTBEAT_INTERVAL: Final = 30
"""Seconds that RQ believes lie between heartbeats of a running job; it adds 60. Ours come far more often."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is now started in RQ's books, with what its stream and its cancel flag said at that moment."""

    job: Job
    execution: Execution
    stream: list[Event]
    cancelled: bool
    deaths: int
    """Workers that died while they ran it."""


@dataclass(frozen=True, slots=True)
class Closing:
    """How an execution ended: a return value, a cancellation, or a reason of failure."""

    job: Job
    execution: Execution
    result: dict[str, Any] | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """An execution in RQ's books: a job that somebody runs, or ran when he died."""

    queue: Queue
    job_id: str
    execution_id: str
    worker: str
    overdue: bool
    """Whether RQ's own heartbeat of it has run out."""


class Ledger(BaseWorker):
    """An RQ worker that holds several executions at a time."""

    death_penalty_class = TimerDeathPenalty  # callbacks run in a thread, where RQ's SIGALRM cannot
    on_stop: Callable[[str], None]
    """Called with the id of a job that RQ's stop command names."""

    def __init__(self, connection: redis.Redis, queues: Sequence[str], lease: int) -> None:
        """``connection`` becomes RQ's own: it changes its timeouts. ``lease`` is in seconds."""
        name = f"{OUR_WORKERS}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        super().__init__(
            list(queues),
            name=name,
            connection=connection,
            serializer=JSONSerializer,
            job_monitoring_interval=_HEARTBEAT_INTERVAL,
            worker_ttl=max(60, 4 * lease),
        )
        self._lease = lease
        self.on_stop = _log.debug

    def open(self) -> None:
        """Register, listen to commands, take the lease."""
        self.register_birth()
        self.subscribe()
        self.set_state(WorkerStatus.IDLE)
        self.beat()

    def close(self) -> None:
        """Say goodbye."""
        self.unsubscribe()
        self.connection.delete(keys.worker_lease(self.name))
        self.register_death()

    def beat(self) -> bool:
        """Renew the worker's lease and RQ's heartbeats of the worker and of every job that it runs, in one round trip.

        A running job that somebody cancelled through RQ is stopped. False when the lease had run out: others may have
        taken its jobs.
        """
        executions = list(self.executions.values())
        with self.connection.pipeline() as pipeline:
            pipeline.set(keys.worker_lease(self.name), json.dumps(self._state_now()), ex=self._lease, get=True)
            self.heartbeat(pipeline=pipeline)
            for execution in executions:
                job = execution.job
                execution.heartbeat(job.started_job_registry, _HEARTBEAT_INTERVAL + 60, pipeline=pipeline)
                job.heartbeat(now(), _HEARTBEAT_INTERVAL + 60, pipeline=pipeline, xx=True)
            before = len(pipeline)
            for execution in executions:
                pipeline.hget(execution.job.key, "status")
            answers = pipeline.execute()
        for execution, status in zip(executions, answers[before:], strict=True):
            if status == JobStatus.CANCELED.value.encode():
                self.on_stop(execution.job_id)
        return answers[0] is not None

    def claim(self, limit: int, wait: float) -> list[Claim]:
        """Claim up to ``limit`` waiting jobs, high priority first; with none waiting, wait up to ``wait`` seconds.

        A claimed id goes from its queue to RQ's intermediate queue in one command and leaves that only when its job is
        started, so a crash at any point loses none.
        """
        limit = min(limit, CLAIM_AT_ONCE)
        moved = self._move(limit) or self._wait_for_one(wait)
        if not moved:
            return []
        return self._start(self._fetch(moved))

    def record(self, closings: Sequence[Closing]) -> None:
        """Write how jobs ended, those that succeeded or were cancelled in one round trip.

        An execution that is no longer in the books was taken over by another worker, who records that job's end.
        """
        plain: list[Closing] = []
        held = self.still_held([closing.execution for closing in closings])
        for closing in closings:
            if closing.execution.id not in held:
                self.forget(closing.execution)
                continue
            if closing.failure is not None:
                self._record_failure(closing)
            elif closing.result is not None and _has_followers(closing.job):
                self._finalize_success(closing.job, self._queue_of(closing.job), closing.execution, closing.result)
            else:
                plain.append(closing)
        if plain:
            self._record_together(plain)
        if not self.executions:
            self.set_state(WorkerStatus.IDLE)

    def forget(self, execution: Execution) -> None:
        """Drop an execution that others have taken from the books."""
        self.executions.pop(execution.id, None)

    def still_held(self, executions: Sequence[Execution]) -> set[str]:
        """The ids of those executions that are in RQ's books; the others were taken over."""
        with self.connection.pipeline(transaction=False) as pipeline:
            for execution in executions:
                pipeline.exists(execution.key)
            answers = pipeline.execute()
        return {execution.id for execution, exists in zip(executions, answers, strict=True) if exists}

    def holdings(self) -> list[Holding]:
        """Every execution in the books of this worker's queues, whoever's."""
        found: list[tuple[Queue, Execution, float]] = []
        for queue in self.queues:
            members: Any = self.connection.zrange(queue.started_job_registry.key, 0, -1, withscores=True)
            for member, expiry in members:
                found.append((queue, Execution.from_composite_key(member.decode(), self.connection), expiry))
        with self.connection.pipeline(transaction=False) as pipeline:
            for _, execution, _ in found:
                pipeline.hget(execution.key, "worker_name")
            workers = pipeline.execute()
        right_now = now().timestamp()
        return [
            Holding(queue, execution.job_id, execution.id, (worker or b"").decode(), expiry < right_now)
            for (queue, execution, expiry), worker in zip(found, workers, strict=True)
        ]

    def put_back(self, holding: Holding, *, if_dead: bool) -> bool:
        """Take a job from whoever holds it and put it at the head of its queue; False when another was quicker.

        With ``if_dead`` only while the holder's lease is gone; that also counts as one death of the job's worker.
        """
        execution = Execution(holding.execution_id, holding.job_id, self.connection, holding.worker)
        registry = holding.queue.started_job_registry
        lease = keys.worker_lease(holding.worker)
        with self.connection.pipeline() as pipeline:
            try:
                pipeline.watch(registry.key, lease)
                if pipeline.zscore(registry.key, execution.composite_key) is None or (
                    if_dead and pipeline.exists(lease)
                ):
                    return False
                job = self._record_of(holding.job_id)
                pipeline.multi()
                if job is None:  # its record has expired; only the entry is left
                    pipeline.zrem(registry.key, execution.composite_key)
                else:
                    execution.delete(job, pipeline)
                    job.set_status(JobStatus.QUEUED, pipeline=pipeline)
                    pipeline.lpush(holding.queue.key, holding.job_id)
                    if if_dead:
                        pipeline.incr(keys.deaths(holding.job_id))
                        pipeline.expire(keys.deaths(holding.job_id), keys.RETENTION)
                pipeline.execute()
            except redis.WatchError:
                return False
        self.forget(execution)
        return job is not None

    def between_queue_and_start(self) -> list[tuple[Queue, str]]:
        """Jobs that some worker has claimed and not started."""
        return [(queue, job_id) for queue in self.queues for job_id in queue.intermediate_queue.get_job_ids()]

    def put_back_unstarted(self, queue: Queue, job_id: str) -> bool:
        """Return such a job to the head of its queue; False when it was started or returned meanwhile."""
        with self.connection.pipeline() as pipeline:
            try:
                pipeline.watch(queue.intermediate_queue_key)
                if pipeline.lpos(queue.intermediate_queue_key, job_id) is None:
                    return False
                pipeline.multi()
                pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
                pipeline.lpush(queue.key, job_id)
                pipeline.execute()
            except redis.WatchError:
                return False
        return True

    def handle_payload(self, message: dict[str, Any]) -> None:
        """RQ's commands, with those that stop a job going to the engine."""
        payload = parse_payload(message)
        if payload["command"] == "stop-job":
            self.on_stop(payload["job_id"])
        else:
            super().handle_payload(message)

    def request_stop_execution(self, execution_id: str) -> None:
        """Stop the job of one execution."""
        execution = self.executions.get(execution_id)
        if execution is not None:
            self.on_stop(execution.job_id)

    def _state_now(self) -> dict[str, Any]:
        return {"running": len(self.executions), "queues": self.queue_names()}

    def _move(self, limit: int) -> list[tuple[Queue, str]]:
        moved: list[tuple[Queue, str]] = []
        for queue in self.queues:
            if len(moved) == limit:
                break
            with self.connection.pipeline(transaction=False) as pipeline:
                for _ in range(limit - len(moved)):
                    pipeline.lmove(queue.key, queue.intermediate_queue_key)
                answers = pipeline.execute()
            moved += [(queue, job_id.decode()) for job_id in answers if job_id is not None]
        return moved

    def _wait_for_one(self, wait: float) -> list[tuple[Queue, str]]:
        """Block on the queue of normal priority; the others are looked at again after ``wait``."""
        if wait <= 0:
            return []
        queue = self.queues[len(self.queues) // 2]
        job_id: Any = self.connection.blmove(queue.key, queue.intermediate_queue_key, wait)  # type: ignore[arg-type]
        return [(queue, job_id.decode())] if job_id is not None else []

    def _fetch(self, moved: list[tuple[Queue, str]]) -> list[Job]:
        """The records of claimed jobs; one that has expired is dropped, and one that cannot be read ends in error."""
        job_ids = [job_id for _, job_id in moved]
        try:
            jobs = Job.fetch_many(job_ids, self.connection, serializer=self.serializer)
        except Exception:  # noqa: BLE001 - RQ raises whatever a damaged record makes it raise
            if len(moved) > 1:  # find the one that cannot be read
                return [job for one in moved for job in self._fetch([one])]
            _log.exception("%s: the job's record cannot be read", job_ids[0])
            end = EndEvent("error", 0, 0, error="the job's record cannot be read")
            publish(self.connection, [(job_ids[0], end)], running_ttl=keys.RETENTION)
            jobs = [None]
        for (queue, job_id), job in zip(moved, jobs, strict=True):
            if job is None:
                queue.intermediate_queue.remove(job_id)
        return [job for job in jobs if job is not None]

    def _record_of(self, job_id: str) -> Job | None:
        try:
            return Job.fetch(job_id, self.connection, serializer=self.serializer)
        except NoSuchJobError:
            return None

    def _start(self, jobs: list[Job]) -> list[Claim]:
        if not jobs:
            return []
        executions = []
        with self.connection.pipeline() as pipeline:
            for job in jobs:
                ttl = int(self.get_heartbeat_ttl(job))
                execution = Execution.create(job, ttl, pipeline=pipeline, worker_name=self.name)
                job.prepare_for_execution(self.name, pipeline=pipeline)
                pipeline.persist(job.key)
                executions.append(execution)
            self.set_state(WorkerStatus.BUSY, pipeline=pipeline)
            before = len(pipeline)
            for job in jobs:
                pipeline.lrem(self._queue_of(job).intermediate_queue_key, 1, job.id)
                pipeline.xrange(keys.token_stream(job.id))
                pipeline.exists(keys.cancel_flag(job.id))
                pipeline.get(keys.deaths(job.id))
            answers = pipeline.execute()[before:]
        claims = []
        for job, execution, *answer in zip(jobs, executions, *(answers[k::4] for k in range(4)), strict=True):
            was_ours, entries, flagged, deaths = answer
            if not was_ours:  # we stood still so long that others gave it back to the queue
                self._undo_start(job, execution)
                continue
            self.executions[execution.id] = execution
            stream = [decode_entry(entry) for entry in entries]
            claims.append(Claim(job, execution, stream, bool(flagged), int(deaths or 0)))
        return claims

    def _undo_start(self, job: Job, execution: Execution) -> None:
        with self.connection.pipeline() as pipeline:
            self.cleanup_execution(job, pipeline, execution)
            pipeline.execute()

    def _record_together(self, closings: list[Closing]) -> None:
        with self.connection.pipeline() as pipeline:
            pipeline.watch(*(closing.execution.key for closing in closings))  # so that none is taken over on the way
            if pipeline.exists(*(closing.execution.key for closing in closings)) < len(closings):
                raise redis.WatchError("an execution was taken over")
            pipeline.multi()
            for closing in closings:
                closing.job.ended_at = now()
                if closing.result is not None:
                    self._finish(closing, pipeline)
                else:
                    self._cancel(closing, pipeline)
                closing.execution.delete(closing.job, pipeline)
            before = len(pipeline)
            for closing in closings:
                pipeline.exists(closing.job.dependents_key)  # with the end, so that none can slip in between
            waited_for = pipeline.execute()[before:]
        for closing, has_dependents in zip(closings, waited_for, strict=True):
            self.forget(closing.execution)
            if has_dependents:
                self._queue_of(closing.job).enqueue_dependents(closing.job)

    def _finish(self, closing: Closing, pipeline: Any) -> None:
        job = closing.job
        assert job.started_at and job.ended_at
        job._result = closing.result
        self.increment_successful_job_count(pipeline)
        self.increment_total_working_time(job.ended_at - job.started_at, pipeline)
        job._handle_success(
            keys.RETENTION,
            pipeline=pipeline,
            worker_name=self.name,
            execution_id=closing.execution.id,
            execution_started_at=closing.execution.created_at,
            execution_ended_at=job.ended_at,
        )
        job.cleanup(keys.RETENTION, pipeline=pipeline, remove_from_queue=False)

    def _cancel(self, closing: Closing, pipeline: Any) -> None:
        job = closing.job
        job.set_status(JobStatus.CANCELED, pipeline=pipeline)
        CanceledJobRegistry(job.origin, self.connection, serializer=self.serializer).add(job, pipeline=pipeline)
        job.cleanup(keys.RETENTION, pipeline=pipeline, remove_from_queue=False)

    def _record_failure(self, closing: Closing) -> None:
        job = closing.job
        job.ended_at = now()
        job.failure_ttl = keys.RETENTION
        self.handle_job_failure(job, self._queue_of(job), exc_string=closing.failure or "", execution=closing.execution)

    def _queue_of(self, job: Job) -> Queue:
        return next(queue for queue in self.queues if queue.name == job.origin)


def _has_followers(job: Job) -> bool:
    """Whether RQ has more to do after a job than to record it."""
    return bool(job._success_callback_name or job.webhooks or job.repeats_left)
