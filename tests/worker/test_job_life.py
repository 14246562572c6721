"""The life of a job in a worker, as theorems: a store and streams in memory, the worker itself, no Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from minilab_worker.job_store import Completion
from minilab_worker.serving import ServedModel
from minilab_worker.worker import make_engine
from support.memory_service import REQUEST, SLOTS, Service
from support.memory_store import MemoryJobStore
from support.waiting import wait_until

from minilab_gen.protocol.events import EndEvent
from minilab_gen.request import GenerationRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def service(served: ServedModel) -> Iterator[Service]:
    service = Service(served)
    yield service
    service.stop()


def test_jobs_are_answered_and_recorded_once_and_their_slots_released(service: Service) -> None:
    jobs = [f"job-{number}" for number in range(10)]
    for job_id in jobs:
        service.queue.submit(job_id, REQUEST)

    worker, _, _ = service.start(engine=make_engine)
    wait_until(lambda: service.has_ended(*jobs))

    service.assert_answered(*jobs)
    wait_until(lambda: worker.used == 0)
    worker.check_idle()
    assert (worker.done, service.queue.started) == (10, {})


def test_no_more_jobs_are_started_than_there_are_slots(service: Service) -> None:
    jobs = [f"job-{number}" for number in range(3 * SLOTS)]
    for job_id in jobs:
        service.queue.submit(job_id, GenerationRequest((5, 6), max_new_tokens=20))
    seen: list[int] = []

    def has_looked_to_the_end() -> bool:
        seen.append(len(service.queue.started))
        return service.has_ended(*jobs)

    service.start()
    wait_until(has_looked_to_the_end, pause=0.001)

    assert max(seen) == SLOTS


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
