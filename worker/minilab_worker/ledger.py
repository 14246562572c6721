"""RQ's books, kept by RQ's own methods for many jobs at a time. This is the one file that touches RQ's insides.

It must not know about models, tokens or threads. A :class:`Ledger` is an RQ worker that never forks and never performs
a job itself: it holds an execution for each job that it claimed, and records how each ended. Many jobs share one round
trip, because RQ's methods take a pipeline. What RQ does for few jobs only (repeats, retries, dependents) is left to its
own code, job by job.

An execution counts as held while it stands in RQ's registry of its job's executions: whoever takes a job over removes
it there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import worker_registration
from rq.command import parse_payload
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import CanceledJobRegistry
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty
from rq.utils import now
from rq.worker import BaseWorker, WorkerStatus

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time, unix_time
from minilab_gen.protocol.jobs import OUR_WORKERS
from minilab_worker.claims import HEARTBEAT_TTL, Claim, Claims, hold

_log = logging.getLogger(__name__)

CLAIM_AT_ONCE: Final = 16
"""Jobs in one claim: enough to fill a worker in a few round trips, few enough not to delay their first tokens."""

_COMMANDS_PAUSE: Final = 0.5
"""Seconds until commands are listened to again when the connection for them has broken."""


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

    def __init__(self, connection: redis.Redis, queues: Sequence[str], lease: int, fingerprint: str) -> None:
        """``connection`` becomes the ledger's own: it never sends a command twice. ``lease`` is in seconds."""
        name = f"{OUR_WORKERS}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        timeout = connection.connection_pool.connection_kwargs["socket_timeout"]
        connection.set_retry(Retry(NoBackoff(), 0))  # to move jobs, or to record an end, is no thing to do twice
        super().__init__(
            list(queues),
            name=name,
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=max(60, 4 * lease),
        )
        # RQ has just raised it to most of a minute, during which no lease would be renewed.
        connection.connection_pool.connection_kwargs["socket_timeout"] = timeout
        self._lease = lease
        self._claims = Claims(self, lease, fingerprint)
        self.on_stop = _log.debug

    def open(self) -> None:
        """Register, listen to commands, take the lease. May be called again when Redis failed in the middle."""
        with self.connection.pipeline() as pipeline:
            self.birth_date = self.last_heartbeat = now()
            self._register(pipeline)
            self.set_state(WorkerStatus.IDLE, pipeline=pipeline)
            pipeline.execute()
        if self.pubsub_thread is None:
            self.subscribe()  # type: ignore[no-untyped-call]
        self.beat()

    def close(self) -> None:
        """Say goodbye."""
        self._stop_listening()
        self.connection.delete(keys.worker_lease(self.name), keys.worker_stats(self.name))
        self.register_death()  # type: ignore[no-untyped-call]

    def beat(self) -> bool:
        """Renew the worker's lease and RQ's heartbeats of the worker and of every job that it runs.

        A running job that somebody cancelled through RQ is stopped. False when others have taken some of the jobs.
        """
        executions = list(self.executions.values())
        with self.connection.pipeline() as pipeline:
            pipeline.time()
            pipeline.set(keys.worker_lease(self.name), json.dumps(self._state_now()), ex=self._lease, get=True)
            for execution in executions:
                pipeline.zscore(execution.job.execution_registry.key, execution.id)
                pipeline.hget(execution.job.key, "status")
            moment, earlier, *answers = pipeline.execute()
        # With the lease renewed nobody takes any of these away, so that this writes to no job of another worker's.
        held = [execution for execution, score in zip(executions, answers[::2], strict=True) if score is not None]
        with self.connection.pipeline() as pipeline:
            if earlier is None:
                self._register(pipeline)  # Redis may have lost it, or RQ may have struck it off
            self.heartbeat(pipeline=pipeline)
            for execution in held:
                self._beat_for(execution, pipeline, unix_time(moment))
            pipeline.execute()
        for execution, status in zip(executions, answers[1::2], strict=True):
            if status == JobStatus.CANCELED.value.encode():
                self.on_stop(execution.job_id)
        return len(held) == len(executions)

    def claim(self, limit: int, wait: float) -> list[Claim]:
        """Claim up to ``limit`` waiting jobs, high priority first; with none waiting, wait up to ``wait`` seconds."""
        claims = self._claims.claim(min(limit, CLAIM_AT_ONCE), wait)
        self.executions |= {claim.execution.id: claim.execution for claim in claims}
        return claims

    def trim(self) -> None:
        """Strike ended jobs whose records have expired off the registries, as RQ's own workers do now and then."""
        moment = server_time(self.connection)
        with self.connection.pipeline(transaction=False) as pipeline:
            for queue in self.queues:
                for registry in (queue.finished_job_registry, queue.failed_job_registry):  # by when each job expires
                    pipeline.zremrangebyscore(registry.key, "-inf", moment)
                # By when each was cancelled, and these RQ keeps for ever.
                pipeline.zremrangebyscore(queue.canceled_job_registry.key, "-inf", moment - keys.RETENTION)
            pipeline.execute()

    def still_held(self, executions: Iterable[Execution]) -> set[str]:
        """The ids of those executions that are in RQ's books; the others were taken over."""
        asked = list(executions)
        with self.connection.pipeline(transaction=False) as pipeline:
            for execution in asked:
                pipeline.zscore(execution.job.execution_registry.key, execution.id)
            scores = pipeline.execute()
        return {execution.id for execution, score in zip(asked, scores, strict=True) if score is not None}

    def record(self, closings: Sequence[Closing]) -> None:
        """Write how jobs ended, all in one transaction but for those for which RQ has more to do.

        An execution that is no longer in the books was taken over by another worker, who records that job's end.
        Raises redis.WatchError when one is taken over just now; nothing is recorded then.
        """
        with self.connection.pipeline() as pipeline:
            pipeline.watch(*(closing.job.key for closing in closings))  # whoever takes a job over touches its record
            held = self.still_held(closing.execution for closing in closings)
            moment = unix_time(pipeline.time())
            ours = [closing for closing in closings if closing.execution.id in held]
            plain = [closing for closing in ours if not _has_followers(closing)]
            pipeline.multi()
            for closing in plain:
                self._record_in(pipeline, closing, moment)
            before = len(pipeline)
            for closing in plain:
                pipeline.exists(closing.job.dependents_key)  # with the end, so that none can slip in between
            waited_for = pipeline.execute()[before:]
        for closing, has_dependents in zip(plain, waited_for, strict=True):
            if has_dependents:
                self._queue_of(closing.job).enqueue_dependents(closing.job)
        for closing in ours:
            if _has_followers(closing):
                self._record_with_followers(closing)
        self.forget(closing.execution for closing in closings)
        if not self.executions:
            self.set_state(WorkerStatus.IDLE)

    def forget(self, executions: Iterable[Execution]) -> None:
        """Drop executions that are recorded or that others have."""
        for execution in executions:
            self.executions.pop(execution.id, None)

    def has_survived(self, job_ids: Iterable[str]) -> None:
        """Take back what counts as this worker's deaths over jobs that were taken from it: it only stood still."""
        with self.connection.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.decr(keys.deaths(job_id))
                pipeline.expire(keys.deaths(job_id), keys.RETENTION)
            pipeline.execute()

    def handle_payload(self, message: dict[str, Any]) -> None:
        """RQ's commands, with those that stop a job going to the engine."""
        payload = parse_payload(message)
        if payload["command"] == "stop-job":
            self.on_stop(payload["job_id"])
        else:
            super().handle_payload(message)  # type: ignore[no-untyped-call]

    def request_stop_execution(self, execution_id: str) -> None:
        """Stop the job of one execution."""
        execution = self.executions.get(execution_id)
        if execution is not None:
            self.on_stop(execution.job_id)

    def _stop_listening(self) -> None:
        """As RQ does it, but that the connection is closed by the thread that reads from it, and by no other."""
        thread: Any = self.pubsub_thread
        if self.pubsub is None or thread is None:
            return
        thread.stop()
        with contextlib.suppress(redis.RedisError):
            self.pubsub.unsubscribe()  # the answer wakes the thread
        thread.join(timeout=2 * _COMMANDS_PAUSE)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Go on listening: RQ's own handler ends the thread at a command that it cannot read."""
        _log.debug("commands are not heard for a moment: %r", exc)
        time.sleep(_COMMANDS_PAUSE)

    def _register(self, pipeline: Any) -> None:
        pipeline.hset(self.key, mapping=self.serialize())
        worker_registration.register(self, pipeline)
        self.heartbeat(pipeline=pipeline)

    def _beat_for(self, execution: Execution, pipeline: Any, moment: float) -> None:
        """Only lengthen what is there: meanwhile the recorder may have removed it."""
        job = execution.job
        job.heartbeat(now(), HEARTBEAT_TTL, pipeline=pipeline, xx=True)
        pipeline.expire(execution.key, HEARTBEAT_TTL)
        pipeline.expire(job.execution_registry.key, HEARTBEAT_TTL + 60)
        hold(pipeline, execution, moment, xx=True)

    def _state_now(self) -> dict[str, Any]:
        return {"running": len(self.executions), "queues": self.queue_names()}

    def _record_in(self, pipeline: Any, closing: Closing, moment: float) -> None:
        job = closing.job
        assert job.started_at
        job.ended_at = now()
        self.increment_total_working_time(job.ended_at - job.started_at, pipeline)
        details = {
            "pipeline": pipeline,
            "worker_name": self.name,
            "execution_id": closing.execution.id,
            "execution_started_at": closing.execution.created_at,
            "execution_ended_at": job.ended_at,
        }
        if closing.result is not None:
            job._result = closing.result
            self.increment_successful_job_count(pipeline)
            job._handle_success(keys.RETENTION, **details)
        elif closing.failure is not None:
            job.failure_ttl = keys.RETENTION
            self.increment_failed_job_count(pipeline)
            job.set_status(JobStatus.FAILED, pipeline=pipeline)
            job._handle_failure(closing.failure, **details)
        else:
            job.set_status(JobStatus.CANCELED, pipeline=pipeline)
            CanceledJobRegistry(job.origin, self.connection, serializer=self.serializer).add(job, pipeline=pipeline)
        self._stamp(pipeline, job, moment)
        job.cleanup(keys.RETENTION, pipeline=pipeline, remove_from_queue=False)
        closing.execution.delete(job, pipeline)

    def _record_with_followers(self, closing: Closing) -> None:
        job, queue = closing.job, self._queue_of(closing.job)
        job.ended_at = now()
        if closing.result is not None:
            self._finalize_success(job, queue, closing.execution, closing.result)
        else:
            job.failure_ttl = keys.RETENTION
            self.handle_job_failure(job, queue, exc_string=closing.failure or "", execution=closing.execution)
        self._stamp(self.connection, job, server_time(self.connection))

    def _stamp(self, pipeline: Any, job: Job, moment: float) -> None:
        """Write by the server's clock when an ended job leaves RQ's registries; RQ itself takes this machine's."""
        queue = self._queue_of(job)
        for registry in (queue.finished_job_registry, queue.failed_job_registry):  # by when each job expires
            pipeline.zadd(registry.key, {job.id: moment + keys.RETENTION}, xx=True)
        pipeline.zadd(queue.canceled_job_registry.key, {job.id: moment}, xx=True)  # by when each was cancelled

    def _queue_of(self, job: Job) -> Queue:
        return next(queue for queue in self.queues if queue.name == job.origin)


def _has_followers(closing: Closing) -> bool:
    """Whether RQ has more to do after a job than to record it."""
    if closing.result is not None:
        return bool(closing.job.repeats_left)
    return closing.failure is not None and bool(closing.job.should_retry)


def check_extras(job: Job) -> None:
    """Raise RequestError for a job that brings code to run or addresses to post to: only our task is ever run."""
    callbacks = (job._success_callback_name, job._failure_callback_name, job._stopped_callback_name)
    if any(callbacks) or job.webhooks:
        raise RequestError("a job must bring no callback and no webhook: nothing but generate is run")
