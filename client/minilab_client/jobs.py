"""``minilab-client jobs``: the jobs that Redis knows of, newest first. It must not change any of them.

RQ tidies a registry when it is read, and takes a job whose worker is late for a failed one; that is left to workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Final, cast, get_args

import click
import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from minilab_client import parameters
from minilab_client.output import say, write_json, write_table
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.errors import StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, RawEntry, decode_entry
from minilab_gen.protocol.jobs import JobState, state_of

_CHUNK: Final = 1000
"""Jobs read in one round trip."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list."""

    job_id: str
    state: JobState
    model: str
    tokens: int
    end: str | None
    created: str
    """When it was submitted, in ISO 8601 with the zone."""


@click.command(
    short_help="List the jobs, newest first.",
    epilog="\b\nExample:\n  minilab-client jobs --state failed --limit 5",
)
@click.option("--state", type=click.Choice(get_args(JobState)), help="Only jobs in this state.")
@click.option(
    "--limit",
    type=parameters.whole_number_from_1,
    default="20",
    metavar="N",
    help="At most so many. Default: 20.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of objects.")
@redis_url_option
@pass_settings
def jobs(settings: ClientSettings, state: JobState | None, limit: int, as_json: bool) -> None:
    """List the jobs, newest first: those that wait, run, and ended within the last day."""
    with settings.connect() as connection:
        found = list(islice(_rows(connection, state), limit))
    if as_json:
        write_json([asdict(row) for row in found])
    elif found:
        columns = [(row.job_id, row.state, row.model, row.tokens, row.end, row.created) for row in found]
        write_table(("JOB", "STATE", "MODEL", "TOKENS", "END", "CREATED"), columns)
    else:
        say("no jobs" if state is None else f"no jobs that are {state}")


def _rows(connection: redis.Redis, state: JobState | None) -> Iterator[JobRow]:
    for job in sorted(_all_jobs(connection, state), key=lambda job: job.created_at, reverse=True):
        try:
            row = _row(connection, job)
        except UnknownJobError:  # it expired since the list was read
            continue
        if state in (None, row.state):
            yield row


def _all_jobs(connection: redis.Redis, state: JobState | None) -> Iterator[Job]:
    for queue in Queue.all(connection=connection, serializer=JSONSerializer):
        if not queue.name.startswith("minilab."):
            continue
        ids = _ids(queue, state)
        for start in range(0, len(ids), _CHUNK):
            yield from _fetched(connection, ids[start : start + _CHUNK])


def _fetched(connection: redis.Redis, ids: list[str]) -> Iterator[Job]:
    """The records of jobs that have not expired; one that cannot be read is named on stderr and left out."""
    try:
        yield from [job for job in Job.fetch_many(ids, connection=connection, serializer=JSONSerializer) if job]
    except Exception as error:  # noqa: BLE001 - RQ raises whatever a damaged record makes it raise
        if len(ids) == 1:
            say(f"job {ids[0]} is left out, its record cannot be read: {type(error).__name__}")
            return
        for job_id in ids:
            yield from _fetched(connection, [job_id])


def _ids(queue: Queue, state: JobState | None) -> list[str]:
    """The ids of a queue's jobs that may be in a state; more where RQ's records do not tell."""
    places = {
        "queued": [queue.deferred_job_registry, queue.scheduled_job_registry],
        "started": [queue.started_job_registry],
        "finished": [queue.finished_job_registry],
        # An ordinary RQ worker records a job that was told to stop as a failed one.
        "failed": [queue.failed_job_registry],
        "cancelled": [queue.canceled_job_registry, queue.failed_job_registry],
    }
    wanted = places.values() if state is None else [places[state]]
    entries = cast(list[bytes], queue.connection.lrange(queue.key, 0, -1)) if state in (None, "queued") else []
    found = [entry.decode() for entry in entries if entry.isascii()]  # others are no job ids
    for registries in wanted:
        for registry in registries:
            found += registry.get_job_ids(cleanup=False)
    return list(dict.fromkeys(found))


def _row(connection: redis.Redis, job: Job) -> JobRow:
    last = _last_event(connection, job.id)
    end = last if isinstance(last, EndEvent) else None
    return JobRow(
        job_id=job.id,
        state="cancelled" if end is not None and end.reason == "cancelled" else state_of(job),
        model=job.origin.split(".")[1],
        tokens=end.tokens if end is not None else last.number if last is not None else 0,
        end=end.reason if end is not None else None,
        created=job.created_at.isoformat(timespec="seconds"),
    )


def _last_event(connection: redis.Redis, job_id: str) -> Event | None:
    entries = cast(list[RawEntry], connection.xrevrange(keys.token_stream(job_id), count=1))
    try:
        return decode_entry(entries[0]) if entries else None
    except StreamError:  # a damaged stream is for `tail` to complain about; the list goes on
        return None
