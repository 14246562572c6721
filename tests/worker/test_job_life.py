"""The life of a job in a worker, as theorems: a store and streams in memory, the worker itself, no Redis."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import fakeredis
import pytest
import redis
from minilab_worker.admission import MOST_EXPIRED_LEASES, admit
from minilab_worker.job_run import TRANSITIONS, JobRun, JobState, JobTable
from minilab_worker.job_store import Claim, Completion, StartedJob
from minilab_worker.serving import ServedModel
from minilab_worker.worker import MakeEngine, Ports, Worker, WorkerSettings
from support.engines import slow_engine
from support.memory_store import QUEUE, MemoryJobStore, MemoryQueue
from support.memory_streams import MemoryStreams
from support.waiting import wait_until

from minilab_gen.generate import generate
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.request import GenerationRequest

REQUEST = GenerationRequest((5, 6), max_new_tokens=50)
SLOTS = 4
HOLDING = (JobState.CLAIMED, JobState.RUNNING, JobState.ENDED, JobState.PUBLISHED)
FINAL = (JobState.RECORDED, JobState.LOST, JobState.RETURNED)


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
        expected = [step.token_id for step in generate(self._served.model, REQUEST.prompt, REQUEST.max_new_tokens)]
        for job_id in job_ids:
            *tokens, end = self.queue.streams[job_id]
            assert [token.token_id for token in tokens if isinstance(token, TokenEvent)] == expected
            assert isinstance(end, EndEvent)
            result = self.queue.ended[job_id].result
            assert result is not None
            assert result["ids"] == expected


@pytest.fixture
def service(served: ServedModel) -> Iterator[Service]:
    service = Service(served)
    yield service
    service.stop()


class Watcher:
    """An observer that notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], JobState]] = []

    def on_moved(self, runs: object, state: JobState) -> None:
        self.seen.append(([run.job_id for run in runs], state))  # type: ignore[attr-defined]


def claim(number: int = 1, request: GenerationRequest | None = REQUEST) -> Claim:
    return Claim(StartedJob(f"job-{number}", f"execution-{number}", QUEUE, "minilab-memory", "owners"), request)


def run_in(state: JobState, served: ServedModel, number: int = 1) -> JobRun:
    """A run that has come to a state by the shortest way."""
    run = JobRun(claim(number), served.tokenizer)
    ways = {
        JobState.CLAIMED: [],
        JobState.RUNNING: [JobState.RUNNING],
        JobState.ENDED: [JobState.ENDED],
        JobState.PUBLISHED: [JobState.ENDED, JobState.PUBLISHED],
        JobState.RECORDED: [JobState.ENDED, JobState.PUBLISHED, JobState.RECORDED],
        JobState.LOST: [JobState.LOST],
        JobState.RETURNED: [JobState.RETURNED],
    }
    for step in ways[state]:
        run.enter(step)
    return run


# The table of transitions


@pytest.mark.parametrize(("state", "following"), list(itertools.product(JobState, repeat=2)))
def test_a_job_enters_exactly_the_states_of_the_table(
    served: ServedModel, state: JobState, following: JobState
) -> None:
    run = run_in(state, served)

    if following in TRANSITIONS[state]:
        run.enter(following)
        assert run.state is following
    else:
        with pytest.raises(AssertionError, match="must not follow"):
            run.enter(following)
        assert run.state is state


def test_every_state_leads_to_one_that_holds_no_slot() -> None:
    reached = set(FINAL)
    for _ in JobState:
        reached |= {state for state in JobState if TRANSITIONS[state] & reached}

    assert reached == set(JobState)


def test_another_worker_or_the_queue_takes_no_job_whose_end_is_published() -> None:
    for state in (JobState.LOST, JobState.RETURNED):
        assert {before for before in JobState if state in TRANSITIONS[before]} == set(HOLDING[:3])


@pytest.mark.parametrize("state", JobState)
def test_a_slot_is_in_use_until_a_final_state(served: ServedModel, state: JobState) -> None:
    table = JobTable(SLOTS, Watcher())

    table.add(run_in(state, served))

    assert table.used == (state in HOLDING)
    assert table.free == SLOTS - table.used


def test_slots_in_use_are_a_count_over_states(served: ServedModel) -> None:
    watcher = Watcher()
    table = JobTable(SLOTS, watcher)
    runs = [run_in(state, served, number) for number, state in enumerate(HOLDING)]
    for run in runs:
        table.add(run)
    assert table.used == len(HOLDING)

    table.move([runs[3]], JobState.RECORDED)
    table.move([runs[0], runs[1]], JobState.LOST)

    assert table.used == 1
    assert [job.job_id for job in table.started] == ["job-2"]
    assert watcher.seen == [(["job-3"], JobState.RECORDED), (["job-0", "job-1"], JobState.LOST)]


def test_a_released_slot_wakes_whoever_waits_for_one(served: ServedModel) -> None:
    table = JobTable(1, Watcher())
    run = run_in(JobState.PUBLISHED, served)
    table.add(run)
    waiting = threading.Thread(target=table.wait, args=(60.0,))
    waiting.start()

    wait_until(lambda: released(table, run, waiting))

    assert table.free == 1


def released(table: JobTable, run: JobRun, waiting: threading.Thread) -> bool:
    """Release the slot, once the thread waits for it; whether that thread has woken."""
    table.move([run] if run.state is JobState.PUBLISHED else [], JobState.RECORDED)
    waiting.join(0.05)
    return not waiting.is_alive()


# Admission


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"request": None, "refusal": "it is none"}, "error"),
        ({"request": GenerationRequest((9_999,), 5)}, "error"),
        ({"expired_leases": MOST_EXPIRED_LEASES}, "error"),
        ({"begun_by": "another"}, "error"),
        ({"is_cancelled": True}, "cancelled"),
        ({"has_expired": True}, "timeout"),
        ({"stream": (TokenEvent(1, 7, ""), EndEvent("length", 1, 2))}, "length"),
    ],
)
def test_a_job_that_cannot_or_need_not_run_has_ended_with_its_claim(
    served: ServedModel, details: dict[str, object], reason: str
) -> None:
    base = claim()
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}

    run = admit(Claim(**(fields | details)), served.card.limits, served.tokenizer)

    assert run.state is JobState.ENDED
    assert run.end is not None
    assert run.end.reason == reason
    assert run.sequence is None or reason != "length"


def test_a_job_with_tokens_does_not_expire(served: ServedModel) -> None:
    begun = Claim(claim().job, REQUEST, stream=(TokenEvent(1, 7, ""),), has_expired=True)

    run = admit(begun, served.card.limits, served.tokenizer)

    assert (run.state, run.end, run.resumed_at) == (JobState.CLAIMED, None, 1)


# The whole life


def test_jobs_are_answered_and_recorded_once_and_their_slots_released(service: Service) -> None:
    jobs = [f"job-{number}" for number in range(10)]
    for job_id in jobs:
        service.queue.submit(job_id, REQUEST)

    worker, _, _ = service.start()
    wait_until(lambda: service.has_ended(*jobs))

    service.assert_answered(*jobs)
    wait_until(lambda: worker.used == 0)
    worker.check_idle()
    assert (worker.done, service.queue.started) == (10, {})


def test_no_more_jobs_are_started_than_there_are_slots(service: Service) -> None:
    jobs = [f"job-{number}" for number in range(3 * SLOTS)]
    for job_id in jobs:
        service.queue.submit(job_id, REQUEST)

    service.start()
    most = 0
    while not service.has_ended(*jobs):
        most = max(most, len(service.queue.started))

    assert most == SLOTS


def test_a_job_is_recorded_only_once_its_end_is_in_the_stream(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    service.start()

    wait_until(lambda: service.has_ended("job"))

    assert isinstance(service.queue.streams["job"][-1], EndEvent)


def test_a_cancelled_job_ends_as_cancelled_and_releases_its_slot(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    worker, _, _ = service.start()
    wait_until(lambda: service.tokens("job") > 3)

    service.queue.cancelled.add("job")

    wait_until(lambda: service.has_ended("job"))
    assert service.queue.ended["job"].result is None
    assert service.queue.ended["job"].failure is None
    wait_until(lambda: worker.used == 0)


def test_a_job_that_the_store_cancels_is_stopped_with_the_next_renewal(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    worker, _, _ = service.start()
    wait_until(lambda: service.tokens("job") > 3)

    worker.cancel("job")
    worker.cancel("unknown")

    wait_until(lambda: service.has_ended("job"))
    *_, end = service.queue.streams["job"]
    assert isinstance(end, EndEvent)
    assert end.reason == "cancelled"


def test_a_lost_job_releases_its_slot_and_is_neither_ended_nor_recorded(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    worker, _, _ = service.start()
    wait_until(lambda: service.tokens("job") > 3)

    service.queue.started.clear()  # as another worker does that takes it over
    worker.recheck_ownership()

    wait_until(lambda: worker.used == 0)
    assert worker.counters.lost == 1
    assert service.tokens("job") < REQUEST.max_new_tokens, "it need not come to its end to see that it is lost"
    assert not isinstance(service.queue.streams["job"][-1], EndEvent)
    assert not service.has_ended("job")
    service.queue.submit("other", REQUEST)
    wait_until(lambda: worker.done == 1 and worker.used == 0)
    worker.check_idle()


def test_a_job_that_is_lost_and_claimed_again_by_the_same_worker_goes_on(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    worker, store, _ = service.start()
    wait_until(lambda: service.tokens("job") > 3)

    assert store.requeue(store.started()[0], if_expired=False)

    wait_until(lambda: service.has_ended("job"))
    service.assert_answered("job")
    wait_until(lambda: worker.used == 0)


def test_answers_that_get_lost_change_nothing(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    _, _, streams = service.start()
    for after in (3, 10, 20):
        wait_until(lambda after=after: service.tokens("job") > after)  # type: ignore[misc]
        streams.fails_next = True

    wait_until(lambda: service.has_ended("job"))

    service.assert_answered("job")


def test_a_store_that_is_away_for_a_while_costs_no_job(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    worker, store, _ = service.start()
    wait_until(lambda: service.tokens("job") > 3)

    with store.away():
        wait_until(lambda: any(outage.count for outage in worker.outages))

    wait_until(lambda: service.has_ended("job"))
    service.assert_answered("job")


def test_draining_returns_in_order_what_is_not_finished_and_another_worker_goes_on(service: Service) -> None:
    jobs = [f"job-{number}" for number in range(SLOTS)]
    for job_id in jobs:
        service.queue.submit(job_id, REQUEST)
    worker, _, _ = service.start(grace=0.0)
    wait_until(lambda: all(service.tokens(job_id) > 3 for job_id in jobs))

    worker.stop()
    wait_until(lambda: len(service.queue.queued) == SLOTS)

    assert [claim.job.job_id for claim in service.queue.queued] == jobs
    assert (worker.counters.returned, worker.used) == (SLOTS, 0)
    service.start("minilab-second")
    wait_until(lambda: service.has_ended(*jobs))
    service.assert_answered(*jobs)


def test_draining_with_time_finishes_what_runs_and_claims_nothing(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    service.queue.submit("job", REQUEST)
    worker, _, _ = service.start()
    wait_until(lambda: service.tokens("job") > 3)

    worker.stop()
    wait_until(lambda: "no new jobs" in caplog.text)
    service.queue.submit("late", REQUEST)

    wait_until(lambda: not worker.is_serving)
    wait_until(lambda: service.has_ended("job"))
    service.assert_answered("job")
    assert [claim.job.job_id for claim in service.queue.queued] == ["late"]


def test_a_job_whose_workers_lease_has_expired_is_taken_over(service: Service) -> None:
    service.queue.submit("job", REQUEST)
    gone = MemoryJobStore(service.queue, "minilab-gone")
    gone.claim(1, 0)

    worker, _, _ = service.start()
    wait_until(lambda: service.has_ended("job"))

    assert worker.counters.taken_over == 1
    service.assert_answered("job")


def test_a_job_whose_worker_holds_its_lease_is_left_to_it(service: Service) -> None:
    service.queue.submit("theirs", REQUEST)
    neighbour = MemoryJobStore(service.queue, "minilab-neighbour")
    neighbour.open(lambda job_id: None)
    (theirs,) = neighbour.claim(1, 0)

    worker, _, _ = service.start()
    service.queue.submit("ours", REQUEST)
    wait_until(lambda: service.has_ended("ours"))

    assert neighbour.owned([theirs.job]) == {theirs.job.execution_id}
    assert worker.counters.taken_over == 0


def test_an_end_is_recorded_once_though_the_answer_to_it_got_lost(service: Service) -> None:
    with losing_the_first_answer():
        service.queue.submit("job", REQUEST)
        worker, store, _ = service.start()
        wait_until(lambda: worker.used == 0 and worker.done == 1)

    service.assert_answered("job")  # the queue itself asserts that no job ends twice
    assert store.finishes == 2


@contextmanager
def losing_the_first_answer() -> Iterator[None]:
    """The first end is recorded, and the worker is not told."""
    whole = MemoryJobStore.finish

    def finish(self: MemoryJobStore, completions: list[Completion]) -> set[str]:
        unpublished = whole(self, completions)
        if self.finishes == 1:
            raise redis.ConnectionError("the answer got lost")
        return unpublished

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryJobStore, "finish", finish)
        yield


def test_an_end_that_a_failover_lost_is_published_again_before_it_is_recorded(service: Service) -> None:
    with losing_the_tail_before_the_first_finish(service):
        service.queue.submit("job", REQUEST)
        worker, store, _ = service.start()
        wait_until(lambda: worker.used == 0 and worker.done == 1)

    service.assert_answered("job")
    assert store.finishes == 2
    assert worker.counters.ended["length"] == 1


def test_a_job_whose_end_was_lost_as_its_worker_exits_is_requeued(service: Service) -> None:
    with losing_the_tail_before_the_first_finish(service):
        service.queue.submit("job", REQUEST)
        worker, store, _ = service.start()
        wait_until(lambda: service.tokens("job") > 2)
        with store.away():
            wait_until(lambda: worker.counters.ended["length"] == 1)
            worker.stop()
            wait_until(lambda: not worker.is_serving)
        wait_until(lambda: service.queue.queued)

    assert [claim.job.job_id for claim in service.queue.queued] == ["job"]
    assert (worker.done, service.queue.ended) == (0, {})


@contextmanager
def losing_the_tail_before_the_first_finish(service: Service) -> Iterator[None]:
    """As when another master takes over that has not seen the last entries."""
    whole = MemoryJobStore.finish

    def finish(self: MemoryJobStore, completions: list[Completion]) -> set[str]:
        if not self.finishes:
            for completion in completions:
                del service.queue.streams[completion.job.job_id][3:]
        return whole(self, completions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryJobStore, "finish", finish)
        yield
