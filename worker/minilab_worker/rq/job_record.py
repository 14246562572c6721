"""What a worker reads in RQ's record of a job. Nothing that a record names is imported, called or unpickled."""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import redis
from rq.job import Job
from rq.serializers import JSONSerializer

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import has_expired
from minilab_gen.protocol.jobs import check_record, request_of, seconds_to_run
from minilab_gen.request import GenerationRequest

_log = logging.getLogger(__name__)

UNREADABLE: Final = "the job's record cannot be read"


_MOMENTS: Final = (b"created_at", b"enqueued_at")
"""Times that every record holds. RQ reads them with strptime, which takes a quarter of a claim."""


@dataclass(frozen=True, slots=True)
class JobContents:
    """What a worker needs of RQ's record of a job."""

    request: GenerationRequest | None
    refusal: str | None = None
    timeout: int = keys.DEFAULT_TIMEOUT
    submitted_at: float | None = None
    has_expired: bool = False


class RecordReader:
    """Reads RQ's records of jobs, by RQ's own code."""

    def __init__(self, connection: redis.Redis) -> None:
        # Copied for each job: RQ's constructor examines its serializer, for as long as all the rest takes.
        self._blank = Job("blank", connection=connection, serializer=JSONSerializer)

    def read(self, job_id: str, record: dict[bytes, bytes], server_time: float) -> JobContents:
        """What a record asks for; a refusal where it cannot be read, or asks what a worker does not do."""
        try:
            job = self._restored(job_id, record)
        except RequestError as error:
            return JobContents(None, str(error))
        except Exception as error:  # noqa: BLE001 - RQ raises whatever a damaged record makes it raise
            why = type(error).__name__  # its text may quote the record
            _log.warning("%s: %s: %s", job_id, UNREADABLE, why, extra={"job_id": job_id})
            return JobContents(None, UNREADABLE)
        request, refusal = _request_in(job)
        submitted_at = job.enqueued_at.timestamp() if job.enqueued_at else None
        return JobContents(request, refusal, seconds_to_run(job), submitted_at, has_expired(job, server_time))

    def _restored(self, job_id: str, record: dict[bytes, bytes]) -> Job:
        check_record(record)
        job = copy(self._blank)
        job._id = job_id
        moments = {name: datetime.fromisoformat(record[name].decode()) for name in _MOMENTS if record.get(name)}
        job.restore({name: value for name, value in record.items() if name not in moments})
        job.enqueued_at = moments.get(b"enqueued_at")
        return job


def _request_in(job: Job) -> tuple[GenerationRequest | None, str | None]:
    try:
        _check_extras(job)
        return request_of(job), None
    except RequestError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - a job that we fail to understand must not end the worker
        _log.exception("%s: the job cannot be read", job.id, extra={"job_id": job.id})
        return None, f"the job cannot be read: {type(error).__name__}"


def _check_extras(job: Job) -> None:
    """Raise RequestError for a job that brings code to run or addresses to post to: only our task is ever run."""
    callbacks = (job._success_callback_name, job._failure_callback_name, job._stopped_callback_name)
    if any(callbacks) or job.webhooks:
        raise RequestError("a job must bring no callback and no webhook: nothing but generate is run")
