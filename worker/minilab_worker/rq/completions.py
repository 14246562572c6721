"""Records how jobs ended: many in one call of a script, and by RQ's own code where that has more to do."""

from __future__ import annotations

import logging
import zlib
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import redis
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat
from rq.worker import BaseWorker

from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_worker.job_store import Completion, StartedJob
from minilab_worker.rq.scripts import FINISH

_log = logging.getLogger(__name__)


class Completions:
    """Writes the ends of one worker's jobs."""

    def __init__(self, worker: BaseWorker) -> None:
        self._worker, self._connection = worker, worker.connection
        self._script = worker.connection.register_script(FINISH)

    def record(self, completions: Sequence[Completion]) -> set[str]:
        """Write how jobs ended; gives the execution ids of those whose stream lacks its end: they stay as they are.

        One that is no longer the worker's own is left to the worker that has it. To record a job twice changes nothing,
        so this may be called again where its answer was lost.
        """
        answers = self._run(completions)
        for completion, answer in zip(completions, answers, strict=True):
            self._follow_up(completion, answer)
        ended = zip(completions, answers, strict=True)
        return {completion.job.execution_id for completion, answer in ended if answer == b"unpublished"}

    def _run(self, completions: Sequence[Completion], *, alone: bool = False) -> list[Any]:
        if not completions:
            return []
        moment = now()
        words: list[Any] = [self._worker.name, keys.RETENTION, utcformat(moment), moment.timestamp()]
        for completion in completions:
            words += _words_of(completion, moment.timestamp())
            words.append(int(alone))
        answers: list[Any] = self._script([self._worker.key, self._worker.executions_key], words)
        return answers

    def _follow_up(self, completion: Completion, answer: bytes | Exception) -> None:
        """Do what the script has left to do."""
        job_id = completion.job.job_id
        if isinstance(answer, Exception):
            _log.warning("%s: RQ has not all of its end: %s", job_id, answer, extra={"job_id": job_id})
        elif answer == b"dependents":
            self._queue_of(completion.job).enqueue_dependents(self._fetch(job_id))
        elif answer == b"more":
            self._repeat_or_retry(completion)

    def _repeat_or_retry(self, completion: Completion) -> None:
        """RQ's own way to end a job that is to run again; a record that RQ cannot read is ended by the script."""
        try:
            job = self._fetch(completion.job.job_id)
        except redis.RedisError:
            raise
        except Exception as error:  # noqa: BLE001 - RQ raises whatever a damaged record makes it raise
            why, extra = type(error).__name__, {"job_id": completion.job.job_id}
            _log.warning("%s: it cannot run again, RQ does not read it: %s", completion.job.job_id, why, extra=extra)
            self._run([completion], alone=True)
            return
        self._end_as_rq_does(job, completion)

    def _end_as_rq_does(self, job: Job, completion: Completion) -> None:
        queue, execution = self._queue_of(completion.job), _execution(completion.job, self._connection)
        job.ended_at = now()
        if completion.result is not None:
            self._worker._finalize_success(job, queue, execution, completion.result)
        else:
            job.failure_ttl = keys.RETENTION
            self._worker.handle_job_failure(job, queue, exc_string=completion.failure or "", execution=execution)
        expires_at = server_time(self._connection) + keys.RETENTION  # RQ has taken this machine's clock
        for registry in (queue.finished_job_registry, queue.failed_job_registry):
            self._connection.zadd(registry.key, {job.id: expires_at}, xx=True)

    def _fetch(self, job_id: str) -> Job:
        return Job.fetch(job_id, self._connection, serializer=JSONSerializer)

    def _queue_of(self, job: StartedJob) -> Queue:
        return next(queue for queue in self._worker.queues if queue.name == job.queue)


def _words_of(completion: Completion, ended: float) -> list[Any]:
    """What the script is told of one job; a result or a failure as RQ's Result class spells it."""
    job = completion.job
    outcome, value = "canceled", ""
    if completion.result is not None:
        outcome, value = "finished", b64encode(JSONSerializer.dumps(completion.result)).decode()
    elif completion.failure is not None:
        outcome, value = "failed", b64encode(zlib.compress(completion.failure.encode())).decode()
    seconds = max(0.0, ended - job.started_at)
    return [job.job_id, job.queue, job.execution_id, job.started_at, seconds, outcome, value]


def _execution(job: StartedJob, connection: redis.Redis) -> Execution:
    execution = Execution(job.execution_id, job.job_id, connection, job.worker)
    execution.created_at = datetime.fromtimestamp(job.started_at, UTC)
    return execution
