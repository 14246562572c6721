"""Several answers to one request on a terminal: one after the other, each under a heading."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import click
import redis

from minilab_client.exit_codes import ExitCode, redis_complaint, report, say_end
from minilab_client.follow import JsonPrinter, Of, TextPrinter, WaitingNotes, follow
from minilab_client.interrupts import uninterrupted
from minilab_client.output import flush, say, write
from minilab_gen.errors import MiniLabError, NotEndedError, RedisUnavailableError, StreamError, UnknownJobError
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.tail import OnWait
from minilab_gen.protocol.tail_together import tail_together

_WORST_FIRST = (ExitCode.FAILED, ExitCode.UNKNOWN_JOB, ExitCode.CANCELLED)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The exit code for several jobs: that of the one that ended worst."""
    given = set(codes)
    return next((code for code in _WORST_FIRST if code in given), ExitCode.DONE)


def each(job_ids: Sequence[str], show: Callable[[int, str], ExitCode]) -> ExitCode:
    """Show job after job; one that cannot be shown is reported, and the others are shown all the same."""
    codes = []
    for index, job_id in enumerate(job_ids):
        try:
            codes.append(show(index, job_id))
        except (UnknownJobError, StreamError) as error:
            if len(job_ids) == 1:
                raise
            flush()
            codes.append(report(error))
    return worst(codes)


def write_heading(index: int, job_id: str) -> None:
    """What stands over an answer, as `tail` of the coreutils names files."""
    write(f"{'' if index == 0 else chr(10)}==> {job_id} <==\n")
    flush()  # before anything that is said about the job on stderr


def follow_answers(
    connection: redis.Redis,
    name: str,
    job_ids: Sequence[str],
    as_json: bool,
    on_wait: OnWait | None = None,
    wait: float | None = None,
) -> ExitCode:
    """Show the events of a group's jobs, or of the one job, from the first token to the end; the exit code for them.

    As :func:`follow` does, whose ``wait`` is here for all of them together. Texts come one after the other, and JSON
    objects as the events come, since they name their job.
    """
    if len(job_ids) == 1:
        return follow(connection, job_ids[0], 0, JsonPrinter() if as_json else TextPrinter(), on_wait, wait)
    if as_json:
        return _follow_together(connection, name, job_ids, on_wait, wait)
    until = None if wait is None else time.monotonic() + wait

    def show(index: int, job_id: str) -> ExitCode:
        write_heading(index, job_id)
        left = None if until is None else max(0.0, until - time.monotonic())
        return follow(connection, job_id, 0, TextPrinter(), on_wait, left, group=Of(name, wait))

    return each(job_ids, show)


def _follow_together(
    connection: redis.Redis, name: str, job_ids: Sequence[str], on_wait: OnWait | None, wait: float | None
) -> ExitCode:
    printers = [JsonPrinter(job_id, index) for index, job_id in enumerate(job_ids)]
    again = f"read again with: minilab-client tail {name} --json"
    codes = []
    try:
        for index, event in tail_together(connection, job_ids, on_wait=on_wait or WaitingNotes(), wait=wait):
            if isinstance(event, MiniLabError):
                codes.append(report(event))
                continue
            with uninterrupted():
                printers[index].show(event)
            flush()
            if isinstance(event, EndEvent):
                codes.append(say_end(job_ids[index], event))
    except KeyboardInterrupt:
        say(f"the jobs go on; {again}")
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    except NotEndedError as error:
        raise NotEndedError(f"{error}; it goes on, {again}") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise RedisUnavailableError(f"{redis_complaint(error)}; {again}") from error
    return worst(codes)
