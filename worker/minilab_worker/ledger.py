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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.command import parse_payload
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


@dataclass(frozen=True, slots=True)
class Closing:
    """How an execution ended: a return value, a cancellation, or a reason of failure."""

    job: Job
    execution: Execution
    result: dict[str, Any] | None = None
    failure: str | None = None


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
        self.on_stop = lambda job_id: None

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

    def beat(self) -> None:
        """Renew the worker's lease and RQ's heartbeats of the worker and of every job that it runs, in one round trip."""
        with self.connection.pipeline() as pipeline:
            pipeline.set(keys.worker_lease(self.name), json.dumps(self._state_now()), ex=self._lease)
            self.heartbeat(pipeline=pipeline)
            for execution in list(self.executions.values()):
                job = execution.job
                execution.heartbeat(job.started_job_registry, _HEARTBEAT_INTERVAL + 60, pipeline=pipeline)
                job.heartbeat(now(), _HEARTBEAT_INTERVAL + 60, pipeline=pipeline, xx=True)
            pipeline.execute()

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

    def record(self, closings: Iterable[Closing]) -> None:
        """Write how jobs ended, those that succeeded or were cancelled in one round trip."""
        plain: list[Closing] = []
        for closing in closings:
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
        job_id = self.connection.blmove(queue.key, queue.intermediate_queue_key, wait)
        return [(queue, job_id.decode())] if job_id is not None else []

    def _fetch(self, moved: list[tuple[Queue, str]]) -> list[Job]:
        """The records of claimed jobs; one that has expired is dropped, and one that cannot be read ends in error."""
        job_ids = [job_id for _, job_id in moved]
        try:
            jobs = Job.fetch_many(job_ids, self.connection, serializer=self.serializer)
        except Exception:
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
                pipeline.lrem(self._queue_of(job).intermediate_queue_key, 1, job.id)
                executions.append(execution)
            self.set_state(WorkerStatus.BUSY, pipeline=pipeline)
            before = len(pipeline)
            for job in jobs:
                pipeline.xrange(keys.token_stream(job.id))
                pipeline.exists(keys.cancel_flag(job.id))
            answers = pipeline.execute()[before:]
        self.executions |= {execution.id: execution for execution in executions}
        return [
            Claim(job, execution, [decode_entry(entry) for entry in entries], bool(flagged))
            for job, execution, entries, flagged in zip(jobs, executions, answers[::2], answers[1::2], strict=True)
        ]

    def _record_together(self, closings: list[Closing]) -> None:
        with self.connection.pipeline() as pipeline:
            for closing in closings:
                closing.job.ended_at = now()
                if closing.result is not None:
                    self._finish(closing, pipeline)
                else:
                    self._cancel(closing, pipeline)
                self.cleanup_execution(closing.job, pipeline, closing.execution)
            before = len(pipeline)
            for closing in closings:
                pipeline.exists(closing.job.dependents_key)  # with the end, so that none can slip in between
            waited_for = pipeline.execute()[before:]
        for closing, has_dependents in zip(closings, waited_for, strict=True):
            if has_dependents:
                self._queue_of(closing.job).enqueue_dependents(closing.job)

    def _finish(self, closing: Closing, pipeline: Any) -> None:
        job = closing.job
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
        self.handle_job_failure(
            job, self._queue_of(job), exc_string=closing.failure or "", execution=closing.execution
        )

    def _queue_of(self, job: Job) -> Queue:
        return next(queue for queue in self.queues if queue.name == job.origin)


def _has_followers(job: Job) -> bool:
    """Whether RQ has more to do after a job than to record it."""
    return bool(job._success_callback_name or job.webhooks or job.repeats_left)
