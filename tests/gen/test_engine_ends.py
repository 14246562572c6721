"""Which sequence runs when, how each ends, and that every way out of the engine frees its slot."""

from __future__ import annotations

import random

import pytest
from support.watched_engine import CONTEXT, HOT, Watched, alone, assert_equal, model_of, random_requests, request_of

from minilab_gen.engine import Engine, Sequence
from minilab_gen.errors import RequestError
from minilab_gen.request import GenerationRequest

# Which sequence runs when


def test_first_come_first_served() -> None:
    watched = Watched(max_batch=2)
    names = [f"job-{number}" for number in range(10)]
    for name in names:
        watched.add(name, request_of(3, 4))

    watched.run()

    assert watched.started == names


def test_a_slot_freed_in_one_step_is_taken_in_the_next() -> None:
    watched = Watched(max_batch=1)
    watched.add("a", request_of(3, 1))
    watched.add("b", request_of(3, 1))

    watched.step()
    assert (watched.engine.running, watched.engine.waiting) == (0, 1)
    watched.step()

    assert watched.started == ["a", "b"]
    assert not watched.engine.has_work


def test_prompts_that_keep_coming_delay_a_running_sequence_by_one_chunk_for_each_token() -> None:
    watched = Watched(max_batch=32, prefill_tokens=16)
    watched.add("a", request_of(3, 12))
    watched.step()
    newcomers = [watched.add(f"long-{number}", request_of(24, 1)) for number in range(20)]

    for number in range(2, 13):
        before = sum(newcomer.read for newcomer in newcomers)
        watched.step()
        assert len(watched.tokens["a"]) == number
        assert sum(newcomer.read for newcomer in newcomers) - before <= 16

    assert watched.ends["a"] == "length"
    assert len(watched.started) < 20


def test_a_long_prompt_does_not_keep_those_behind_it_waiting_for_ever() -> None:
    watched = Watched(max_batch=2, prefill_tokens=4)
    for number in range(6):
        watched.add(f"job-{number}", request_of(31 if number % 2 else 2, 3))

    watched.run()

    assert watched.started == [f"job-{number}" for number in range(6)]


# Where an answer stops


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17])
def test_an_answer_holds_as_many_tokens_as_were_asked_for(length: int) -> None:
    watched = Watched()
    watched.add("a", request_of(3, length))

    watched.run()

    assert len(watched.tokens["a"]) == length
    assert watched.ends["a"] == "length"


@pytest.mark.parametrize(("prompt_length", "asked"), [(5, 1000), (5, 10**12), (31, 5)])
def test_a_full_context_ends_an_answer(prompt_length: int, asked: int) -> None:
    watched = Watched()
    watched.add("a", request_of(prompt_length, asked))
    watched.add("neighbour", request_of(4, 6))

    watched.run()

    assert len(watched.tokens["a"]) == CONTEXT - prompt_length
    assert watched.ends["a"] == "context"
    assert_equal(watched, "neighbour", alone(request_of(4, 6)))


@pytest.mark.parametrize("number", [1, 3])
def test_a_stop_token_is_the_last_of_its_answer(number: int) -> None:
    tokens = alone(request_of(3, 8, HOT)).tokens
    assert tokens.index(tokens[number - 1]) == number - 1
    watched = Watched()
    watched.add("a", request_of(3, 8, HOT, stop_ids=(tokens[number - 1],)))

    watched.run()

    assert watched.tokens["a"] == tokens[:number]
    assert watched.ends["a"] == "stop"


def test_a_stop_token_that_is_also_the_last_one_allowed_is_a_stop() -> None:
    tokens = alone(request_of(3, 1)).tokens
    watched = Watched()
    watched.add("a", request_of(3, 1, stop_ids=(tokens[0],)))

    assert watched.run().ends["a"] == "stop"


def test_a_stop_token_at_the_end_of_the_prompt_stops_nothing() -> None:
    request = request_of(3, 4)
    stop_id = request.prompt[-1]
    assert stop_id not in alone(request).tokens
    watched = Watched()
    watched.add("a", request_of(3, 4, stop_ids=(stop_id,)))

    assert len(watched.run().tokens["a"]) == 4


# Every way out frees the slot


def leave(watched: Watched, way: str) -> None:
    """Let the job "a" out of an engine with two slots in this way; others fill the engine."""
    full = {"cancelled waiting", "timeout waiting"}
    for number in range(2 if way in full else 1):
        watched.add(f"other-{number}", request_of(5, 6, HOT))
    first = alone(request_of(3, 1)).tokens[0]
    request = request_of(3, 1 if way == "length" else 100, stop_ids=(first,) if way == "stop" else ())
    sequence = watched.add("a", request_of(31, 5) if way == "context" else request)
    if way == "error":
        watched.poison["a"] = 3
    watched.step(1 if way in full else 3)
    if way.startswith("cancelled"):
        assert watched.engine.end("a", "cancelled")
    if way.startswith("timeout"):
        sequence.deadline = 0.0  # long ago on the monotonic clock


@pytest.mark.parametrize(
    ("way", "reason", "tokens"),
    [
        ("stop", "stop", 1),
        ("length", "length", 1),
        ("context", "context", 1),
        ("cancelled waiting", "cancelled", 0),
        ("cancelled running", "cancelled", 3),
        ("timeout waiting", "timeout", 0),
        ("timeout running", "timeout", 3),
        ("error", "error", 2),
    ],
)
def test_every_way_out_frees_the_slot(way: str, reason: str, tokens: int) -> None:
    watched = Watched(max_batch=2)
    leave(watched, way)

    watched.step()

    assert watched.ends["a"] == reason
    assert len(watched.tokens["a"]) == tokens
    watched.run()
    assert (watched.engine.running, watched.engine.waiting) == (0, 0)
    watched.add("next", request_of(3, 8, HOT))
    watched.run()
    assert_equal(watched, "next", alone(request_of(3, 8, HOT)))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_sequence_cancelled_while_its_prompt_is_half_read_frees_its_slot(steps: int) -> None:
    watched = Watched(max_batch=3, prefill_tokens=7)
    watched.add("a", request_of(3, 8, HOT))
    watched.add("half-read", request_of(25, 8))
    watched.add("b", request_of(4, 8, HOT))
    watched.step(steps)

    watched.engine.end("half-read", "cancelled")
    watched.run()

    assert watched.tokens["half-read"] == []
    assert_equal(watched, "a", alone(request_of(3, 8, HOT)))
    assert_equal(watched, "b", alone(request_of(4, 8, HOT)))


def test_a_deadline_that_is_past_lets_nothing_start() -> None:
    watched = Watched()
    watched.add("a", request_of(3, 8)).deadline = 0.0

    watched.step()

    assert (watched.tokens["a"], watched.ends["a"]) == ([], "timeout")
    watched.engine.check_idle()


def test_three_hundred_jobs_with_every_end_leave_nothing_behind() -> None:
    watched, pick = Watched(max_batch=7, prefill_tokens=16), random.Random(0)
    requests = random_requests(300)
    waiting = list(requests.items())
    while waiting or watched.engine.has_work:
        for name, request in [waiting.pop() for _ in range(min(len(waiting), pick.randrange(5)))]:
            sequence = watched.add(name, request)
            fate = pick.randrange(4)
            if fate == 0:
                watched.poison[name] = pick.randrange(1, 5)
            elif fate == 1:
                watched.engine.end(name, "cancelled")
            elif fate == 2:
                sequence.deadline = 0.0
        watched.step()

    watched.engine.check_idle()
    assert watched.ends.keys() == requests.keys()
    assert set(watched.ends.values()) == {"stop", "length", "context", "cancelled", "timeout", "error"}


# Names


def test_cancelling_is_answered_by_whether_the_name_is_here() -> None:
    watched = Watched(max_batch=1)
    watched.add("running", request_of(3, 3))
    watched.add("waiting", request_of(3, 3))
    watched.step()

    answers = [watched.engine.end(name, "cancelled") for name in ("waiting", "waiting", "nope")]
    watched.step()
    answers.append(watched.engine.end("waiting", "cancelled"))
    watched.run()
    answers.append(watched.engine.end("running", "cancelled"))

    assert answers == [True, True, False, False, False]
    assert (watched.tokens["waiting"], watched.ends["waiting"]) == ([], "cancelled")
    assert (len(watched.tokens["running"]), watched.ends["running"]) == (3, "length")


def test_the_first_reason_to_leave_is_the_one_given() -> None:
    watched = Watched()
    watched.add("a", request_of(3, 8))
    watched.step()
    watched.engine.end("a", "error", "the worker stops")
    watched.engine.end("a", "cancelled")

    watched.run()

    assert (watched.ends["a"], watched.errors["a"]) == ("error", "the worker stops")


@pytest.mark.parametrize("steps", [0, 1], ids=["waiting", "running"])
def test_a_name_that_is_here_is_refused_and_its_owner_goes_on(steps: int) -> None:
    watched = Watched()
    watched.add("x", request_of(3, 8, HOT))
    watched.step(steps)

    with pytest.raises(RequestError, match="must be new to the engine, got x again"):
        watched.engine.add(Sequence("x", request_of(5, 8)))

    watched.run()
    assert_equal(watched, "x", alone(request_of(3, 8, HOT)))


def test_a_name_is_free_again_after_the_end() -> None:
    watched = Watched()
    watched.add("x", request_of(3, 2))
    watched.run()
    watched.ends.clear()

    watched.add("x", request_of(5, 8, HOT))
    watched.run()

    assert_equal(watched, "x", alone(request_of(5, 8, HOT)))


# What cannot run


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest((1,) * CONTEXT), "prompt must hold 1 to 31 ids, got 32"),
        (GenerationRequest((1,) * (CONTEXT + 1)), "prompt must hold 1 to 31 ids, got 33"),
        (GenerationRequest((1, 64)), "prompt ids must be 0 to 63, got 64 at position 1"),
        (GenerationRequest((1,), stop_ids=(64,)), "stop_ids must be below 64, got 64 at position 0"),
    ],
)
def test_what_cannot_run_is_refused_and_the_others_go_on(request_: GenerationRequest, message: str) -> None:
    watched = Watched(max_batch=1)
    watched.add("before", request_of(3, 2))

    with pytest.raises(RequestError, match=message):
        watched.engine.add(Sequence("bad", request_))

    watched.add("after", request_of(3, 2))
    assert watched.run().ends == {"before": "length", "after": "length"}


def test_an_engine_without_work_has_nothing_to_say() -> None:
    engine = Engine(model_of(), max_batch=2)

    assert not engine.has_work
    assert engine.step() == []
    engine.check_idle()
