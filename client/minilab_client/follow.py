"""Show a job's tokens as they come, to its end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

import click
import redis

from minilab_client.exit_codes import ExitCode, redis_complaint, say_end
from minilab_client.interrupts import uninterrupted
from minilab_client.output import flush, require_reader, say, write, write_json
from minilab_gen.errors import NotEndedError, RedisUnavailableError
from minilab_gen.protocol.cards import start_command
from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.jobs import JobView
from minilab_gen.protocol.tail import OnWait, tail


class Printer(Protocol):
    """One way to show events."""

    def show(self, event: Event) -> None: ...

    def stop(self) -> None:
        """Called where reading stops before the end."""


class TextPrinter:
    """The text alone, with a line end behind the last token."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, event: Event) -> None:
        self._shown = self._shown or bool(event.text)
        write(event.text)
        if isinstance(event, EndEvent) and (self._shown or event.succeeded):
            write("\n")

    def stop(self) -> None:
        # On a terminal the prompt is to stand on a line of its own. A file gets nothing added: what a later run appends
        # is then exactly the rest.
        if sys.stdout.isatty():
            write("\n")


class JsonPrinter:
    """One JSON object for each event; of a job that is one of several it names the job and its place among them."""

    def __init__(self, job_id: str | None = None, index: int | None = None) -> None:
        self._of: dict[str, Any] = {} if job_id is None else {"job_id": job_id, "index": index}

    def show(self, event: Event) -> None:
        write_json({"event": "end" if isinstance(event, EndEvent) else "token", **self._of, **event.to_json()})

    def stop(self) -> None:
        pass


class WaitingNotes:
    """Says what a job waits for, each time that this changes."""

    def __init__(self) -> None:
        self._last: str | None = None

    def __call__(self, view: JobView) -> None:
        require_reader()
        reason = reason_to_wait(view)
        if reason is not None and reason != self._last:
            say(f"waiting: {reason}")
        self._last = reason


def reason_to_wait(view: JobView) -> str | None:
    """Why no token comes, as far as it can be seen from outside."""
    if view.state == "started" and not view.workers_alive:
        return f"its worker is gone; the job goes on where it stopped once you start one: {start_command(view.model)}"
    if view.state != "queued":
        return None
    if not view.workers_alive:
        return f"no worker serves the model {view.model}; start one in another terminal: {start_command(view.model)}"
    if view.position:
        return f"{view.position} job{'s stand' if view.position > 1 else ' stands'} before it in the queue"
    return "it is the next in the queue"


@dataclass(frozen=True, slots=True)
class Of:
    """The group of which a job is shown."""

    group_id: str
    wait: float | None
    """Seconds that all of its jobs together are read for."""


def follow(
    connection: redis.Redis,
    job_id: str,
    after: int,
    printer: Printer,
    on_wait: OnWait | None = None,
    wait: float | None = None,
    *,
    group: Of | None = None,
) -> ExitCode:
    """Show the events after token ``after``, to the end; the exit code for how the job ended.

    An interrupt ends the program with a note on how to read on; so does the loss of Redis, as RedisUnavailableError,
    and the end of ``wait`` seconds, as NotEndedError.
    """
    seen = after
    try:
        for event in tail(connection, job_id, after, on_wait=on_wait or WaitingNotes(), wait=wait):
            with uninterrupted():
                printer.show(event)
                seen = event.number
            flush()  # what stays in the buffer on an interrupt is counted, and written as the program ends
            if isinstance(event, EndEvent):
                return say_end(job_id, event)
    except KeyboardInterrupt:
        printer.stop()
        goes_on = "the job goes on" if group is None else "the jobs go on"
        say(f"{goes_on}; read on with: {_rest(job_id, seen, group)}")
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    except NotEndedError as error:
        printer.stop()
        again = f"it goes on, read on with: {_rest(job_id, seen, group)}"
        raise NotEndedError(f"{_unended(job_id, error, group)}; {again}") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        printer.stop()
        raise RedisUnavailableError(f"{redis_complaint(error)}: {_rest(job_id, seen, group)}") from error
    raise AssertionError("a tail must end with the end of its job")


def wait_for_end(connection: redis.Redis, job_id: str, wait: float | None, *, group: Of | None = None) -> None:
    """Return when a job has ended, and say meanwhile what it waits for. Raises NotEndedError after ``wait`` seconds."""
    try:
        for _ in tail(connection, job_id, on_wait=WaitingNotes(), wait=wait):
            pass
    except NotEndedError as error:
        name = job_id if group is None else group.group_id
        again = f"it goes on, ask again with: minilab-client result {name} --wait"
        raise NotEndedError(f"{_unended(job_id, error, group)}; {again}") from error


def _unended(job_id: str, error: NotEndedError, group: Of | None) -> str:
    """What was waited for; of a group, the time for all of its jobs, and not what was left of it for this one."""
    return str(error) if group is None else f"job {job_id} has not ended within {group.wait:g} s"


def _rest(job_id: str, seen: int, group: Of | None = None) -> str:
    others = "" if group is None else f"; all answers: minilab-client tail {group.group_id}"
    return f"minilab-client tail {job_id} --from {seen}{others}"
