"""Several answers to one request from a worker: the same whenever and beside whatever they are computed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from minilab_worker.serving import ServedModel
from support.served_jobs import StartWorker

import minilab_gen
from minilab_gen import EndEvent, SamplingSettings, TokenEvent
from minilab_gen.errors import RequestError, UnknownJobError
from minilab_gen.generate import generate
from minilab_gen.protocol.events import Event
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import MAX_SEED, GenerationRequest

PROMPT = (5, 6)
LENGTH = 16

Answers = list[tuple[int, ...]]


def ids_of(name: str) -> Answers:
    """The ids of each answer, once all have ended."""
    list(minilab_gen.tail(name))
    return [answer.ids for answer in minilab_gen.results(name) if answer is not None]


def ask(temperature: float, seed: int | None, n: int = 4, **options: Any) -> Answers:
    settings: Any = {"temperature": temperature, "seed": seed, "max_new_tokens": LENGTH, "stop_ids": ()}
    name = minilab_gen.submit(PROMPT, n=n, **settings, **options)
    return ids_of(name)


def reference(served: ServedModel, *seeds: int) -> Answers:
    """What the plain loop answers with each of these seeds."""
    settings = [SamplingSettings(1.0, seed=seed) for seed in seeds]
    return [tuple(step.token_id for step in generate(served.model, PROMPT, LENGTH, each)) for each in settings]


def test_answers_differ_and_are_the_same_whenever_they_are_asked_for(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()

    first, again, alone = ask(1.0, 7), ask(1.0, 7), ask(1.0, 7, n=1)

    assert first == again == reference(served, 7, 8, 9, 10)
    assert len(set(first)) == 4
    assert first[:1] == alone


def test_answers_are_the_same_in_a_busy_batch(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    others = [
        enqueue(server, GenerationRequest((9, 5, 7), 30, SamplingSettings(0.7, seed=seed)), Submission(priority="high"))
        for seed in range(7)
    ]
    start_worker(max_batch=8)

    assert ask(1.0, 7, n=2) == reference(served, 7, 8)
    assert all(ids_of(job_id) for job_id in others)


def test_the_seeds_after_the_largest_begin_again(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()

    assert ask(1.0, MAX_SEED) == reference(served, MAX_SEED, 0, 1, 2)


def test_greedy_answers_are_equal(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()

    assert len(set(ask(0.0, 7))) == len(set(ask(0.0, None))) == 1


def test_answers_without_a_seed_differ_from_each_other_and_from_the_next(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    start_worker()

    assert len({*ask(1.0, None), *ask(1.0, None)}) == 8


def test_one_answer_is_a_job_with_the_very_id(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    assert minilab_gen.submit(PROMPT, n=1, job_id="x") == "x"

    assert minilab_gen.job_ids("x") == ["x"]
    assert [type(event) for event in minilab_gen.tail("x")][-1] is EndEvent
    assert minilab_gen.results("x") == [minilab_gen.result("x")]


async def read_async(name: str) -> list[Event]:
    return [event async for event in minilab_gen.tail_async(name)]


def test_a_program_reads_one_answer_of_a_group_after_the_other(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    group = minilab_gen.submit(PROMPT, n=3, job_id="x", max_new_tokens=5, stop_ids=())

    events = list(minilab_gen.tail(group))

    assert minilab_gen.job_ids(group) == ["x-0", "x-1", "x-2"]
    assert [event.number for event in events if isinstance(event, TokenEvent)] == [1, 2, 3, 4, 5] * 3
    assert [isinstance(event, EndEvent) for event in events] == ([False] * 5 + [True]) * 3
    assert asyncio.run(read_async(group)) == events
    assert [answer and answer.job_id for answer in minilab_gen.results(group)] == ["x-0", "x-1", "x-2"]


def test_a_group_that_waits_has_no_results_and_is_cancelled_as_a_whole(server: redis.Redis) -> None:
    group = minilab_gen.submit(PROMPT, n=2)

    assert minilab_gen.results(group) == [None, None]
    assert minilab_gen.cancel(group) == "queued"
    assert minilab_gen.cancel(group) == "cancelled"
    assert [answer and answer.end.reason for answer in minilab_gen.results(group)] == ["cancelled", "cancelled"]


def test_what_has_no_meaning_for_a_group_is_refused(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    for n in (0, 65, True, 1.0, "2", None):
        with pytest.raises(RequestError, match="n must be a whole number from 1 to 64"):
            minilab_gen.submit(PROMPT, n=n)  # type: ignore[arg-type]
    minilab_gen.submit(PROMPT, n=2, job_id="x")

    with pytest.raises(RequestError, match="a group is read from its beginning, got after token 1; name one job: x-0"):
        next(minilab_gen.tail("x", 1))
    with pytest.raises(RequestError, match=r"x is a group of 2; results\(\) gives them all"):
        minilab_gen.result("x")


def test_an_unknown_name_is_an_unknown_job(server: redis.Redis) -> None:
    assert minilab_gen.job_ids("nothing") == ["nothing"]
    for asked in (minilab_gen.results, minilab_gen.cancel, lambda name: list(minilab_gen.tail(name))):
        with pytest.raises(UnknownJobError):
            asked("nothing")
