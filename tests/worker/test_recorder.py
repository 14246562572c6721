"""The recorder: in a worker that holds many jobs it records many ends at once, in others each end at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from minilab_worker import recorder
from minilab_worker.job_run import JobRun, JobState, JobTable
from minilab_worker.recorder import Recorder
from minilab_worker.serving import ServedModel
from support.memory_service import REQUEST
from support.memory_store import MemoryJobStore, MemoryQueue
from support.waiting import wait_until

SLOTS = 32


class Held:
    """A worker's table full of jobs, and the recorder that its observer feeds."""

    def __init__(self, served: ServedModel, jobs: int) -> None:
        self.queue = MemoryQueue()
        self.store = MemoryJobStore(self.queue)
        self.table = JobTable(SLOTS, self)
        self.recorder = Recorder(self.store, self.table)
        for number in range(jobs):
            self.queue.submit(f"job-{number}", REQUEST)
        self.runs = [JobRun(claim, served.tokenizer) for claim in self.store.claim(jobs, 0)]
        for run in self.runs:
            self.table.add(run)

    def on_moved(self, runs: Sequence[JobRun], state: JobState) -> None:
        if state is JobState.PUBLISHED:
            self.recorder.add(runs)

    def publish(self, run: JobRun) -> None:
        """Give a run its end, as the engine's thread does."""
        run.close("length")
        self.queue.streams[run.job_id] = list(run.transcript.events)
        self.table.move([run], JobState.PUBLISHED)


@pytest.fixture
def held(served: ServedModel, request: pytest.FixtureRequest) -> Iterator[Held]:
    held = Held(served, request.param)
    yield held
    held.recorder.close()


@pytest.mark.parametrize("held", [SLOTS], indirect=True)
def test_ends_that_follow_each_other_in_a_full_worker_are_recorded_together(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_LONGEST_WAIT", 60.0)  # however busy the machine is
    four = held.runs[: SLOTS // 8]
    held.publish(four[0])
    held.recorder.start()
    for run in four[1:]:
        held.publish(run)

    wait_until(lambda: len(held.queue.ended) == len(four))
    assert held.store.finishes == 1


@pytest.mark.parametrize("held", [SLOTS], indirect=True)
def test_an_end_that_none_follows_is_recorded_all_the_same(held: Held) -> None:
    held.recorder.start()
    held.publish(held.runs[0])

    wait_until(lambda: held.table.used == SLOTS - 1)


@pytest.mark.parametrize("held", [SLOTS], indirect=True)
def test_a_recorder_that_is_closed_records_what_waits(held: Held) -> None:
    for run in held.runs[:2]:
        held.publish(run)
    held.recorder.start()
    held.recorder.close()

    assert len(held.queue.ended) == 2
