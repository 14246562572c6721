"""Jobs from the outside: RQ's record of one, checked before it is read, and how it stands.

How one is submitted: ``submission.py``. How one that no worker runs is ended: ``endings.py``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue, Worker
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from minilab_gen.errors import RequestError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, JobState
from minilab_gen.protocol.streams import end_of, ends_of, stream_length
from minilab_gen.request import GenerationRequest, shown

MAX_PAYLOAD_BYTES: Final = 4_000_000
"""Bytes of a job's record, and of its arguments once they are inflated: twelve for each id of the longest prompt and of
the longest lists of its settings. JSON of 100 MB, which may be 100 kB in Redis, took a worker 5 s and 1.7 GB to read
and refuse."""

_STATES: Final[dict[JobStatus, JobState]] = {
    JobStatus.CREATED: "queued",
    JobStatus.QUEUED: "queued",
    JobStatus.DEFERRED: "queued",
    JobStatus.SCHEDULED: "queued",
    JobStatus.RATE_LIMITED: "queued",
    JobStatus.READY_TO_ENQUEUE: "queued",
    JobStatus.STARTED: "started",
    JobStatus.FINISHED: "finished",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "cancelled",
    JobStatus.CANCELED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it stands."""

    job_id: str
    state: JobState
    model: str
    tokens: int
    """Tokens in its stream."""
    end: EndEvent | None
    position: int | None
    """Jobs before it in its queue, while it waits."""
    worker: str | None
    """The worker that runs it."""
    workers_alive: int
    """Workers that serve its queue now."""
    error: str | None
    """The last line of RQ's record of a failure; None while there is no record of it."""


def fetch(connection: redis.Redis, job_id: str) -> Job:
    """RQ's record of a job. Raises UnknownJobError where there is none, RequestError where it is none of ours."""
    return restored(connection, job_id, connection.hgetall(Job.key_for(keys.check_job_id(job_id))))


def restored(connection: redis.Redis, job_id: str, record: Any) -> Job:
    """The job in RQ's record of it, as HGETALL gives that. Raises as :func:`fetch` does."""
    check_record(record)
    job = Job(job_id, connection=connection, serializer=JSONSerializer)
    try:
        job.restore({name: value for name, value in record.items() if name != b"webhooks"})  # which RQ would log about
    except NoSuchJobError:
        raise UnknownJobError(f"unknown or expired job: {job_id}") from None
    except Exception as error:  # RQ raises whatever a damaged record makes it raise
        raise RequestError(f"the record of job {job_id} cannot be read: {type(error).__name__}") from error
    return job


def check_record(record: Mapping[bytes, bytes]) -> None:
    """Raise RequestError for RQ's record of a job that is larger than any of ours, or that RQ could not write back.

    To be asked before RQ inflates or reads it.
    """
    for size in (sum(map(len, record.values())), *(_inflated(record.get(name, b"")) for name in _INFLATED)):
        if size > MAX_PAYLOAD_BYTES:
            raise RequestError(f"a job's record must be at most {MAX_PAYLOAD_BYTES} bytes, inflated or not, got more")
    waits_for = record.get(b"dependency_ids") or b"[]"
    if not _is_list_of_text(waits_for):
        raise RequestError(f"a job's dependency_ids must be a list of job ids, got {shown(waits_for)}")


_INFLATED: Final = (b"data", b"exc_info")
"""Fields of a record that RQ inflates when it restores a job."""


def _is_list_of_text(field: bytes) -> bool:
    try:
        items = json.loads(field)
    except (ValueError, RecursionError):
        return False
    return isinstance(items, list) and all(isinstance(item, str) for item in items)


def _inflated(field: bytes) -> int:
    """Bytes to which RQ would inflate a field; of more than allowed, only that it is more."""
    try:
        return len(zlib.decompressobj().decompress(field, MAX_PAYLOAD_BYTES + 1))
    except zlib.error:  # RQ takes it as it is
        return 0


def state_of(connection: redis.Redis, job: Job) -> JobState:
    """The state of a job, freshly read. Raises UnknownJobError."""
    recorded = recorded_state(job)  # before the stream: a job is not seen as finished without its end
    return decided(recorded, end_of(connection, job.id))


def decided(recorded: JobState, end: EndEvent | None) -> JobState:
    """The state of a job by RQ's record and its stream: a terminal entry decides, whatever the record says yet.

    A worker writes the entry first, and may be killed before the record. And an ordinary RQ worker can only record a
    failure where a job was cancelled.
    """
    if end is None:
        return recorded
    return "finished" if end.succeeded else "cancelled" if end.reason == "cancelled" else "failed"


def recorded_state(job: Job) -> JobState:
    """Our word for RQ's status of a job, freshly read: for callers that wait for it. Raises UnknownJobError."""
    try:
        return _STATES[job.get_status()]
    except InvalidJobOperation:
        raise UnknownJobError(f"unknown or expired job: {job.id}") from None


def state_named(status: str) -> JobState | None:
    """Our word for a status as it stands in RQ's record of a job; None for one that RQ does not know."""
    return next((state for known, state in _STATES.items() if known.value == status), None)


def states_of(connection: redis.Redis, job_ids: Iterable[str]) -> list[JobState | None]:
    """The states of many jobs in two round trips; None for one that is unknown or has expired."""
    asked = list(job_ids)
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in asked:
            pipeline.hget(Job.key_for(job_id), "status")
        answers: list[bytes | None] = pipeline.execute()
    recorded = [None if status is None else state_named(status.decode()) or "failed" for status in answers]
    ends = ends_of(connection, [job_id for job_id, state in zip(asked, recorded, strict=True) if state == "started"])
    return [state and decided(state, ends.get(job_id)) for job_id, state in zip(asked, recorded, strict=True)]


def request_of(job: Job) -> GenerationRequest:
    """The request in a job. Raises RequestError for anything that is not one of ours; nothing is run or unpickled."""
    args: object
    kwargs: object
    if len(job.data) > MAX_PAYLOAD_BYTES:
        raise RequestError(f"a job's data must be at most {MAX_PAYLOAD_BYTES} bytes, got {len(job.data)}")
    try:
        function, args, kwargs = job.func_name, job.args, job.kwargs
    except DeserializationError as error:
        raise RequestError(f"a job's data must be JSON, got {error.__cause__ or error}") from error
    if function != keys.TASK:
        raise RequestError(f"a job must name {keys.TASK}, got {function}")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        came = f"{type(args).__name__} and {type(kwargs).__name__}"
        raise RequestError(f"a job's arguments must be a list and an object, got {came}")
    if len(args) != 1 or kwargs:
        raise RequestError(f"a job must have one argument, got {len(args)} and {len(kwargs)} named")
    return GenerationRequest.from_payload(args[0])


def view(connection: redis.Redis, job_id: str) -> JobView:
    """A job as it stands now. Raises UnknownJobError."""
    job = fetch(connection, job_id)
    recorded = _STATES[job.get_status(refresh=False)]  # before the stream, as in state_of
    tokens, end = stream_length(connection, job_id)
    state = decided(recorded, end)
    waiting = state == "queued"
    return JobView(
        job_id=job_id,
        state=state,
        model=model_of(job),
        tokens=tokens,
        end=end,
        position=queue_of(connection, job.origin).get_job_position(job_id) if waiting else None,
        worker=job.worker_name if state == "started" else None,
        workers_alive=workers_alive(connection, job.origin),
        error=failure_of(job) if state == recorded == "failed" else None,
    )


def model_of(job: Job) -> str:
    """The model that a job asks."""
    ours = keys.queue_parts(job.origin)
    return ours[0] if ours else job.origin.removeprefix("minilab.")


def seconds_to_run(job: Job) -> int:
    """How long a job may run; RQ's -1 is no limit."""
    asked = int(job.timeout or keys.DEFAULT_TIMEOUT)
    return asked if 0 < asked <= keys.LONGEST_TIME else keys.LONGEST_TIME


def failure_of(job: Job) -> str:
    """The last line of RQ's record of why a job failed."""
    result = job.latest_result()
    lines = (result.exc_string or "").strip().splitlines() if result else []
    return lines[-1] if lines else "no reason was recorded"


def workers_alive(connection: redis.Redis, queue: str) -> int:
    """Workers that serve a queue now.

    Ours hold a short lease. An ordinary RQ worker has only RQ's record of it, which outlives a kill by minutes.
    """
    # Not Worker.all: RQ's worker objects set 415 s as the timeout of the connection that they are given.
    prefix = Worker.redis_worker_namespace_prefix
    names = [record.removeprefix(prefix) for record in Worker.all_keys(queue=queue_of(connection, queue))]
    signs = [sign_of_life(name) for name in names]
    return int(connection.exists(*signs)) if signs else 0


OUR_WORKERS: Final = "minilab-"
"""What the names of our workers begin with."""


def sign_of_life(worker: str) -> str:
    """The key that is there while the worker of this name lives."""
    is_ours = worker.startswith(OUR_WORKERS)
    return keys.worker_lease(worker) if is_ours else f"{Worker.redis_worker_namespace_prefix}{worker}"


def noted(job: Job, name: str) -> object:
    """What a job's meta says under a name; it may be anything where another program made the job."""
    meta: object = job.meta
    return meta.get(name) if isinstance(meta, dict) else None


def queue_of(connection: redis.Redis, name: str) -> Queue:
    return Queue(name, connection=connection, serializer=JSONSerializer)
