"""The states of a job in a worker: which follow each other, which hold a slot, which a claim may have reached."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
from minilab_worker.admission import MOST_EXPIRED_LEASES, admit
from minilab_worker.job_run import TRANSITIONS, JobRun, JobState, JobTable
from minilab_worker.job_store import Claim
from minilab_worker.serving import ServedModel
from support.memory_service import REQUEST, SLOTS, claim
from support.waiting import wait_until

from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

HOLDING = (JobState.CLAIMED, JobState.RUNNING, JobState.ENDED, JobState.PUBLISHED)
FINAL = (JobState.RECORDED, JobState.LOST, JobState.RETURNED)


class Watcher:
    """An observer that notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], JobState]] = []

    def on_moved(self, runs: object, state: JobState) -> None:
        self.seen.append(([run.job_id for run in runs], state))  # type: ignore[attr-defined]


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

STOPPING = replace(REQUEST, stop=(get_tokenizer().decode([300]),))
STOPPED = (TokenEvent(1, 300, ""),)
"""What its worker published before it was killed: the end is missing."""


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"request": None, "refusal": "it is none"}, "error"),
        ({"request": GenerationRequest((9_999,), 5)}, "error"),
        ({"expired_leases": MOST_EXPIRED_LEASES}, "error"),
        ({"begun_by": "another"}, "error"),
        ({"begun_by": "another", "request": STOPPING, "stream": STOPPED}, "error"),
        ({"request": STOPPING, "stream": STOPPED}, "stop"),
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
