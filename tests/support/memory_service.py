"""A worker on a store and streams in memory, without Redis. It must not hold a test."""

from __future__ import annotations

import threading

import fakeredis
from minilab_worker.job_store import Claim, StartedJob
from minilab_worker.serving import ServedModel
from minilab_worker.worker import MakeEngine, Ports, Worker, WorkerSettings

from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.request import GenerationRequest
from support.engines import slow_engine
from support.memory_store import QUEUE, MemoryJobStore, MemoryQueue
from support.memory_streams import MemoryStreams
from support.references import reference_ids

REQUEST = GenerationRequest((5, 6), max_new_tokens=50)
SLOTS = 4


class Service:
    """A queue, and workers of one model that serve from it in threads."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.queue = MemoryQueue()
        self._threads: list[tuple[Worker, threading.Thread]] = []

    def start(
        self, name: str = "minilab-memory", engine: MakeEngine = slow_engine, grace: float = 25.0
    ) -> tuple[Worker, MemoryJobStore, MemoryStreams]:
        store, streams = MemoryJobStore(self.queue, name), MemoryStreams(self.queue)
        connection = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True)
        settings = WorkerSettings((QUEUE,), SLOTS, lease=3, grace=grace)
        worker = Worker(settings, self._served, engine, Ports(connection, store, streams))
        thread = threading.Thread(target=worker.serve)
        thread.start()
        self._threads.append((worker, thread))
        return worker, store, streams

    def stop(self) -> None:
        for worker, thread in self._threads:
            worker.stop()
            thread.join()

    def tokens(self, job_id: str) -> int:
        return len(self.queue.streams.get(job_id, ()))

    def has_ended(self, *job_ids: str) -> bool:
        return self.queue.ended.keys() >= set(job_ids)

    def assert_answered(self, *job_ids: str) -> None:
        expected = reference_ids(self._served, REQUEST)
        for job_id in job_ids:
            *tokens, end = self.queue.streams[job_id]
            assert [token.token_id for token in tokens if isinstance(token, TokenEvent)] == expected
            assert isinstance(end, EndEvent)
            result = self.queue.ended[job_id].result
            assert result is not None
            assert result["ids"] == expected


def claim(number: int = 1, request: GenerationRequest | None = REQUEST) -> Claim:
    return Claim(StartedJob(f"job-{number}", f"execution-{number}", QUEUE, "minilab-memory", "owners"), request)
