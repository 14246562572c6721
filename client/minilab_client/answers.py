"""Several answers to one request on a terminal: one after the other, each under a heading."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import redis

from minilab_client.exit_codes import ExitCode, report
from minilab_client.follow import JsonPrinter, Of, TextPrinter, follow
from minilab_client.output import flush, write
from minilab_gen.errors import StreamError, UnknownJobError
from minilab_gen.protocol.tail import OnWait

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

    As :func:`follow` does, whose ``wait`` is here for all of them together.
    """
    until = None if wait is None else time.monotonic() + wait

    def show(index: int, job_id: str) -> ExitCode:
        is_one_of_many = len(job_ids) > 1
        if is_one_of_many and not as_json:
            write_heading(index, job_id)
        printer = JsonPrinter(job_id, index) if as_json and is_one_of_many else JsonPrinter() if as_json else None
        left = wait if until is None or not is_one_of_many else max(0.0, until - time.monotonic())
        group = Of(name, wait) if is_one_of_many else None
        return follow(connection, job_id, 0, printer or TextPrinter(), on_wait, left, group=group)

    return each(job_ids, show)
