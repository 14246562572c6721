"""What a reader gets where no worker writes the end: of a job too late, failed or cancelled in RQ's records."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis
from rq import SimpleWorker
from rq.job import JobStatus
from support.client_program import overdue, submit
from support.tail_readers import ANSWER, STREAM, Read, start, write

from minilab_gen.protocol import jobs, keys
from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.jobs import JobView, fetch
from minilab_gen.protocol.tail import tail

pytestmark = pytest.mark.usefixtures("short_blocks")

TOO_LATE = EndEvent("timeout", 0, prompt_tokens=3, phase="waiting")


def test_a_job_that_waits_longer_than_its_ttl_ends_as_timed_out(connection: redis.Redis, read: Read) -> None:
    overdue(connection, "x")

    assert read(connection, "x", 0) == [TOO_LATE]
    assert jobs.queue_of(connection, keys.queue_name("base")).count == 0
    view = jobs.view(connection, "x")
    assert (view.state, view.error) == ("failed", "the job waited longer than its ttl")


def test_a_job_within_its_ttl_is_waited_for(connection: redis.Redis) -> None:
    submit(connection, "x", ttl=1000)

    def run_it(view: JobView) -> None:
        write(connection, *ANSWER)

    assert list(tail(connection, "x", on_wait=run_it)) == ANSWER


def test_readers_who_find_a_job_too_late_at_once_write_one_end(connection: redis.Redis) -> None:
    overdue(connection, "x")
    together = threading.Barrier(8)

    def reader() -> list[Event]:
        together.wait()
        return list(tail(connection, "x"))

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(reader) for _ in range(8)]

    assert [read.result() for read in found] == [[TOO_LATE]] * 8
    assert connection.xlen(STREAM) == 1
    assert jobs.queue_of(connection, keys.queue_name("base")).failed_job_registry.get_job_ids() == ["x"]


def test_a_job_that_rq_failed_before_it_ran_ends_in_error(connection: redis.Redis, read: Read) -> None:
    """A worker of another serializer cannot read the job; nothing of ours is ever called."""
    submit(connection, "x")
    with signals_kept():
        SimpleWorker([keys.queue_name("base")], connection=connection).work(burst=True)

    (end,) = read(connection, "x", 0)

    assert isinstance(end, EndEvent)
    assert (end.reason, end.tokens) == ("error", 0)
    assert "DeserializationError" in (end.error or "")
    assert read(connection, "x", 0) == [end]


@contextmanager
def signals_kept() -> Iterator[None]:
    """RQ's worker takes the signals of its process and does not give them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_job_that_failed_in_the_middle_keeps_its_tokens(connection: redis.Redis, read: Read) -> None:
    start(connection)
    write(connection, *ANSWER[:2])
    fetch(connection, "x").set_status(JobStatus.FAILED)

    *tokens, end = read(connection, "x", 0)

    assert tokens == ANSWER[:2]
    assert end == EndEvent("error", 2, prompt_tokens=3, error="no reason was recorded")


def test_a_waiting_job_that_rq_cancelled_ends_as_cancelled(connection: redis.Redis, read: Read) -> None:
    submit(connection, "x")
    fetch(connection, "x").cancel()

    assert read(connection, "x", 0) == [EndEvent("cancelled", 0, prompt_tokens=3)]
