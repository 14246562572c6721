"""How the program ends: one exit code for each kind of end, one line for each error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from minilab_client.output import say, say_error
from minilab_gen.errors import (
    DuplicateJobError,
    MiniLabError,
    NotEndedError,
    QueueFullError,
    RedisUnavailableError,
    RequestError,
    UnknownJobError,
    UnknownModelError,
)
from minilab_gen.protocol.events import EndEvent

if TYPE_CHECKING:
    import redis


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    FAILED = 1
    """The job failed or ran out of time, its answer cannot be shown as whole, or a check found something wrong."""
    REFUSED = 2
    """Bad usage, or a request that can never run."""
    UNKNOWN_JOB = 3
    NO_REDIS = 4
    CANCELLED = 5
    INTERRUPTED = 130
    """128 and the number of SIGINT, as shells have it."""
    NOT_ENDED = 124
    """The job has not ended within --wait; the code that `timeout` of the coreutils has for that."""
    BROKEN_PIPE = 141
    """128 and the number of SIGPIPE: the reader of our output has exited."""
    TERMINATED = 143
    """128 and the number of SIGTERM."""


_REMEDIES: dict[type[MiniLabError], tuple[ExitCode, str]] = {
    DuplicateJobError: (ExitCode.REFUSED, "choose another --job-id"),
    QueueFullError: (ExitCode.REFUSED, "try again later or raise --max-queued"),
    RequestError: (ExitCode.REFUSED, ""),
    UnknownModelError: (ExitCode.REFUSED, "`minilab-client models` lists what is there"),
    NotEndedError: (ExitCode.NOT_ENDED, ""),
    UnknownJobError: (ExitCode.UNKNOWN_JOB, "`minilab-client jobs` lists what is there"),
    RedisUnavailableError: (ExitCode.NO_REDIS, ""),
}
"""The exit code of each error, and what to do about it where its message does not say so."""


def code_of_end(end: EndEvent) -> ExitCode:
    """The exit code for how a job ended."""
    if end.succeeded:
        return ExitCode.DONE
    return ExitCode.CANCELLED if end.reason == "cancelled" else ExitCode.FAILED


def say_end(job_id: str, end: EndEvent) -> ExitCode:
    """Say why a job did not end well; its exit code."""
    after = f"after {end.tokens} token{'' if end.tokens == 1 else 's'}"
    if end.reason == "cancelled":
        say_error("JobCancelledError", f"job {job_id} was cancelled {after}", prefix="")
    elif end.reason == "timeout" and end.phase == "waiting":
        say_error(
            "JobTimeoutError",
            f"job {job_id} expired: it waited longer than its --ttl; submit it again with a longer one",
        )
    elif end.reason == "timeout":
        say_error("JobTimeoutError", f"job {job_id} ran out of time {after}; submit it again with a longer --timeout")
    elif end.reason == "error":
        say_error("JobFailedError", f"job {job_id} failed {after}: {end.error or 'no reason was recorded'}")
    elif end.complete is False:
        say(f"job {job_id}: the answer is not complete, it ended {after} ({end.reason})")
    return code_of_end(end)


@contextmanager
def exit_codes(*, as_json: bool | None = None) -> Iterator[None]:
    """Turn whatever ends the program early into at most one line on stderr and click's Exit with the code."""
    try:
        try:
            yield
        finally:
            print(end="", flush=True)  # here, where a closed pipe can still be handled, and not as Python shuts down
    except BrokenPipeError:
        _drop_output()
        code = ExitCode.BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):  # the second is an interrupt of a question
        _drop_output()  # a reader that takes nothing more would hold us up for ever as Python shuts down
        code = ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = ExitCode.REFUSED
    except _reported() as error:
        code = report(error, as_json=as_json)
    else:
        return
    raise click.exceptions.Exit(code)


def report(
    error: click.ClickException | MiniLabError | redis.RedisError | OSError, *, as_json: bool | None = None
) -> ExitCode:
    """Say what went wrong and what to do about it, in one line; the exit code for it."""
    kind, message, code = _message(error)
    if isinstance(error, OSError):
        _drop_output()  # or Python would try to write the rest again as it shuts down
    say_error(kind, message, as_json=as_json)
    return code


def _message(
    error: click.ClickException | MiniLabError | redis.RedisError | OSError,
) -> tuple[str, str, ExitCode]:
    """What kind of error it is, what to say about it, and the exit code for it."""
    if isinstance(error, click.ClickException):
        return "UsageError", f"{error.format_message().rstrip('.')}{_help_hint(error)}", ExitCode.REFUSED
    if isinstance(error, MiniLabError):
        known = (answer for kind, answer in _REMEDIES.items() if isinstance(error, kind))
        code, remedy = next(known, (ExitCode.FAILED, ""))
        return type(error).__name__, f"{error}{'; ' if remedy else ''}{remedy}", code
    if not isinstance(error, OSError):
        return "RedisError", redis_complaint(error), ExitCode.NO_REDIS
    return "OSError", f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", ExitCode.FAILED


def _reported() -> tuple[type[click.ClickException | MiniLabError | redis.RedisError | OSError], ...]:
    """What ends the program with one line; of redis-py nothing where it was never loaded."""
    loaded = sys.modules.get("redis.exceptions")
    return (click.ClickException, MiniLabError, OSError, *(() if loaded is None else (loaded.RedisError,)))


def redis_complaint(error: redis.RedisError) -> str:
    """What went wrong with Redis, and what to do about it."""
    import redis  # not at the top: most runs meet no error, and --version no Redis

    from minilab_gen.protocol.refusals import refusal

    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        reason = str(error).rpartition("of pipeline caused error: ")[2].rstrip(".") or type(error).__name__
        return f"Redis was lost: {reason}; check that it runs, then try again"
    return "; ".join(filter(None, refusal(error)))


def _help_hint(error: click.ClickException) -> str:
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"; see {error.ctx.command_path} --help"


def _drop_output() -> None:
    """Send what is still unwritten nowhere."""
    with suppress(OSError):  # an output without a descriptor has no reader to lose
        output = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
