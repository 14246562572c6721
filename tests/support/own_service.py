"""A service of a test's own: a Redis that may be killed, and workers that are processes. It must not hold any test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import redis
from chaos.checkpoint import references
from chaos.fleet import Fleet, WorkerProcess
from chaos.server import Server
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import read_stream, stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest, SamplingSettings
from support.waiting import wait_until

LONG = GenerationRequest((5, 6, 7), max_new_tokens=100, settings=SamplingSettings(temperature=0.8, seed=11))
"""A job that lasts most of a second."""

LIMIT = 120.0
"""Seconds for anything here to come true: workers start anew on the way, on machines that are loaded."""


class OwnService:
    """Its Redis and its workers, and the few things that tests ask of them."""

    def __init__(self, checkpoint: Path, server: Server, fleet: Fleet) -> None:
        self.server, self.fleet = server, fleet
        self.connection = server.connect()
        self._checkpoint = checkpoint
        self._answers: dict[GenerationRequest, list[int]] = {}

    @property
    def queue(self) -> Queue:
        return Queue(keys.queue_name(keys.DEFAULT_MODEL), connection=self.connection, serializer=JSONSerializer)

    def submit(self, request: GenerationRequest = LONG, **options: str | int) -> str:
        return enqueue(self.connection, request, Submission(**options))  # type: ignore[arg-type]

    def tokens(self, job_id: str) -> int:
        """How many tokens stand in a job's stream."""
        return stream_length(self.connection, job_id)[0]

    def stream(self, job_id: str) -> list[Event]:
        """A job's events; fails at a gap."""
        return read_stream(self.connection, job_id)

    def wait_for_token(self, job_id: str, number: int) -> None:
        wait_until(lambda: self.tokens(job_id) >= number, LIMIT)

    def wait_for_status(self, job_id: str, *statuses: str) -> None:
        wait_until(lambda: self.status(job_id) in statuses, LIMIT)

    def status(self, job_id: str) -> str:
        """RQ's word for how a job is."""
        return str(fetch(self.connection, job_id).get_status().value)

    def wait_for_holder(self, job_id: str, worker: WorkerProcess) -> None:
        """Wait until this worker, and no earlier one, has started a job."""
        wait_until(lambda: self.status(job_id) == "started" and self.holder(job_id) is worker, LIMIT)

    def holder(self, job_id: str) -> WorkerProcess:
        """The worker that runs a job, or ran it last."""
        return self.fleet.holder_of(self.connection, job_id)

    def answer(self, request: GenerationRequest = LONG) -> list[int]:
        """What ``generate`` alone answers."""
        if request not in self._answers:
            self._answers |= references(self._checkpoint, [request])
        return self._answers[request]

    def assert_answered(self, job_id: str, request: GenerationRequest = LONG) -> None:
        """The whole answer stands in the stream, and RQ recorded it once."""
        *tokens, end = self.stream(job_id)
        assert isinstance(end, EndEvent)
        assert end.succeeded, end
        assert [token.token_id for token in tokens if isinstance(token, TokenEvent)] == self.answer(request)
        self.wait_for_status(job_id, "finished")
        assert len(Job.fetch(job_id, self.connection, serializer=JSONSerializer).results()) == 1

    def assert_nothing_is_left(self) -> None:
        """RQ's records show no job that waits or runs."""
        for name in keys.queue_names(keys.DEFAULT_MODEL):
            queue = Queue(name, connection=self.connection, serializer=JSONSerializer)
            for key in (queue.key, queue.intermediate_queue_key, queue.started_job_registry.key):
                assert not self.connection.exists(key), f"{key} must be empty"
        assert self.connection.keys("rq:execution*") == []

    def successes(self) -> int:
        """Jobs that all workers together count as having succeeded."""
        found = [key for key in self.connection.keys("rq:worker:*") if not key.endswith(b":executions")]  # type: ignore[arg-type]
        return sum(int(self.connection.hget(key, "successful_job_count") or 0) for key in found)


@contextmanager
def own_service_of(checkpoint: Path) -> Iterator[OwnService]:
    """Start it; nothing of it is left at the end."""
    with TemporaryDirectory(prefix="ml-") as name:
        server = Server(Path(name))
        with server, Fleet(checkpoint, server.url, Path(name)) as fleet:
            service = OwnService(checkpoint, server, fleet)
            try:
                yield service
            finally:
                service.connection.close()


def answers(connection: redis.Redis) -> bool:
    """Whether Redis takes commands."""
    try:
        return bool(connection.ping())
    except redis.RedisError:
        return False
