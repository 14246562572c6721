"""Token streams in memory, with the interface of the publisher."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import redis
from minilab_worker.job_run import JobRun

from minilab_gen.protocol.events import EndEvent, Event
from support.memory_store import MemoryQueue


class MemoryStreams:
    """Writes to the streams of a :class:`MemoryQueue`; what one step sends is there with the next."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._sent: list[tuple[JobRun, Event]] = []
        self._watched: Sequence[JobRun] = ()
        self._refused: list[JobRun] = []
        self.fails_next = False
        """Whether the next answers get lost, the entries before them being written."""

    def send(self, runs: Iterable[JobRun], watched: Sequence[JobRun]) -> None:
        for run in runs:
            self._sent += [(run, event) for event in run.transcript.events[run.sent :]]
            run.sent = len(run.transcript.events)
        self._watched = watched

    def collect(self) -> list[JobRun]:
        sent, watched, self._sent, self._watched = self._sent, self._watched, [], ()
        for run, event in sent:
            if self._append(run, event):
                run.confirmed += not self.fails_next
            else:
                self._refused.append(run)
        if self.fails_next:
            self.fails_next = False
            raise redis.ConnectionError("the answers got lost")
        return [run for run in watched if run.job_id in self._queue.cancelled]

    def take_refused(self) -> list[JobRun]:
        refused, self._refused = list(dict.fromkeys(self._refused)), []
        return refused

    def read_stream(self, run: JobRun) -> list[Event]:
        return list(self._queue.streams.get(run.job_id, ()))

    def delete_stream(self, run: JobRun) -> None:
        self._queue.streams.pop(run.job_id, None)

    def recover(self, runs: Sequence[JobRun]) -> list[JobRun]:
        self.disconnect()
        others = []
        for run in runs:
            stream = self.read_stream(run)
            if stream == run.transcript.events[: len(stream)]:
                run.sent = run.confirmed = len(stream)
            else:
                others.append(run)
        return others

    def disconnect(self) -> None:
        self._sent, self._watched = [], ()

    def _append(self, run: JobRun, event: Event) -> bool:
        """Whether the entry is accepted: the next one in its number, and an end only from the job's owner."""
        stream = self._queue.streams.setdefault(run.job_id, [])
        has_ended = bool(stream) and isinstance(stream[-1], EndEvent)
        if has_ended or event.number != len(stream) + 1:
            return False
        if isinstance(event, EndEvent) and run.job.execution_id not in self._queue.started:
            return False
        stream.append(event)
        return True
