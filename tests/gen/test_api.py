"""The functions that programs call, end to end: a real server, a worker, the same answers however they are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from support.client_program import queued
from support.engines import slow_engine
from support.waiting import wait_until

import minilab_gen
from minilab_gen import EndEvent, GenerationRequest, JobResult, SamplingSettings, TokenEvent
from minilab_gen.errors import RequestError, UnknownJobError, UnknownModelError
from minilab_gen.generate import generate
from minilab_gen.protocol import jobs, keys
from minilab_gen.protocol.events import Event
from minilab_gen.protocol.submission import EXPIRES_AT

StartWorker = Callable[..., Worker]


def request_of(server: redis.Redis, job_id: str) -> GenerationRequest:
    return jobs.request_of(jobs.fetch(server, job_id))


def finished(job_id: str) -> JobResult:
    """The result of a job, once it has ended."""
    list(minilab_gen.tail(job_id))
    found = minilab_gen.result(job_id)
    assert found is not None
    return found


async def read_async(job_id: str, after: int = 0) -> list[Event]:
    return [event async for event in minilab_gen.tail_async(job_id, after)]


def test_an_answer_ends_before_a_stop_text(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    whole = finished(minilab_gen.submit("Phileas Fogg", max_new_tokens=30)).text
    stop = whole[20:23]

    for given in (stop, ["\0", stop]):
        found = finished(minilab_gen.submit("Phileas Fogg", max_new_tokens=30, stop=given))
        assert (found.text, found.end.reason, found.end.stop_text) == (whole[: whole.index(stop)], "stop", stop)
        assert len(found.ids) == found.end.tokens < 30
    assert (
        finished(minilab_gen.submit("Phileas Fogg", max_new_tokens=30, stop=None, min_p=None, seed=None)).text == whole
    )


def test_a_text_is_continued_as_the_reference_does(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()

    job_id = minilab_gen.submit("Phileas Fogg", max_new_tokens=12, stop_ids=())
    *tokens, end = minilab_gen.tail(job_id)

    prompt = served.tokenizer.encode("Phileas Fogg")
    expected = [step.token_id for step in generate(served.model, prompt, 12)]
    assert [(event.number, event.token_id) for event in tokens if isinstance(event, TokenEvent)] == list(
        enumerate(expected, start=1)
    )
    assert isinstance(end, EndEvent)
    assert (end.reason, end.tokens, end.prompt_tokens) == ("length", 12, len(prompt))
    text = served.tokenizer.decode(expected)
    assert minilab_gen.result(job_id) == JobResult(job_id, tuple(expected), text, end, seed=0)


def test_whichever_way_a_job_is_read_it_is_the_same(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    job_id = minilab_gen.submit([5, 6], max_new_tokens=20, temperature=0.8, seed=3, stop_ids=())

    while_it_runs = asyncio.run(read_async(job_id))
    whole = list(minilab_gen.tail(job_id))

    assert while_it_runs == whole
    for seen in (0, 1, 7, 20, 21, 99):
        rest = whole[min(seen, 20) :]
        assert list(minilab_gen.tail(job_id, seen)) == rest
        assert asyncio.run(read_async(job_id, seen)) == rest


def test_a_sampled_job_without_a_seed_draws_one_with_which_it_can_be_repeated(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    start_worker()

    def run(seed: int | None = None) -> JobResult:
        return finished(minilab_gen.submit([5, 6], max_new_tokens=16, temperature=1.0, seed=seed, stop_ids=()))

    first, second = run(), run()
    again = run(first.seed)

    assert first.seed != second.seed
    assert first.ids != second.ids
    assert request_of(server, first.job_id).settings == SamplingSettings(1.0, seed=first.seed or 0)
    assert (again.seed, again.ids, again.text) == (first.seed, first.ids, first.text)


def test_settings_that_the_model_resolves_are_ids_in_the_queue(server: redis.Redis) -> None:
    job_id = minilab_gen.submit(
        [5], bad_words=["Fogg"], logit_bias={"12": -5, "7": 2}, min_p=0.1, ignore_eos=True, max_new_tokens=9
    )

    request = request_of(server, job_id)
    assert request.settings == SamplingSettings(
        min_p=0.1, logit_bias={7: 2.0, 12: -5.0}, bad_words_ids=((40, 351), (352,))
    )
    assert request.stop_ids == ()


def test_a_chat_may_ask_for_more_than_a_prompt_gets_by_default(server: redis.Redis) -> None:
    with pytest.raises(RequestError, match="min_tokens must be at most max_new_tokens, 64, got 100"):
        minilab_gen.submit([5], min_tokens=100)
    with pytest.raises(RequestError, match="the model base has no chat template"):
        minilab_gen.submit(chat="Hello", min_tokens=100)


def test_seed_0_is_a_seed(server: redis.Redis) -> None:
    job_id = minilab_gen.submit([5], temperature=1.0, seed=0)

    assert request_of(server, job_id).settings.seed == 0


def test_a_greedy_job_draws_no_seed(server: redis.Redis) -> None:
    for temperature in (0.0, 1e-40):
        assert request_of(server, minilab_gen.submit([5], temperature=temperature)).settings.seed == 0


def test_what_is_asked_is_what_is_queued(server: redis.Redis) -> None:
    job_id = minilab_gen.submit(
        [5, 12, 7],
        max_new_tokens=9,
        temperature=0.8,
        top_k=20,
        top_p=0.9,
        seed=11,
        stop_ids=[1, 2],
        job_id="x",
        priority="high",
        timeout=60,
        ttl=70,
    )

    job = jobs.fetch(server, "x")
    assert job_id == "x"
    assert jobs.request_of(job) == GenerationRequest((5, 12, 7), 9, SamplingSettings(0.8, 20, 0.9, 11), (1, 2))
    assert (job.origin, job.timeout) == (keys.queue_name("base", "high"), 60)
    assert 60 < job.meta[EXPIRES_AT] - time.time() <= 70


def test_the_models_own_stop_ids_are_taken_where_none_are_given(server: redis.Redis, start_worker: StartWorker) -> None:
    worker = start_worker()
    wait_until(lambda: server.exists(keys.model_card("base")))

    assert request_of(server, minilab_gen.submit([5])).stop_ids == worker._served.card.stop_ids
    assert request_of(server, minilab_gen.submit([5], stop_ids=[])).stop_ids == ()


def test_a_running_job_is_cancelled_and_keeps_its_tokens(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker(engine=slow_engine)
    job_id = minilab_gen.submit([5, 6], max_new_tokens=60, stop_ids=())
    assert minilab_gen.result(job_id) is None
    events = minilab_gen.tail(job_id)
    first = [next(events) for _ in range(3)]

    assert minilab_gen.cancel(job_id) == "started"

    *rest, end = events
    assert isinstance(end, EndEvent)
    assert (end.reason, end.tokens) == ("cancelled", len(first + rest))
    assert end.tokens < 60
    assert finished(job_id).ids == tuple(event.token_id for event in first + rest if isinstance(event, TokenEvent))


def test_a_waiting_job_is_cancelled_at_once(server: redis.Redis) -> None:
    job_id = minilab_gen.submit([5, 6])
    assert minilab_gen.result(job_id) is None

    assert minilab_gen.cancel(job_id) == "queued"

    assert list(minilab_gen.tail(job_id)) == [EndEvent("cancelled", 0, prompt_tokens=2)]
    assert minilab_gen.cancel(job_id) == "cancelled"
    assert queued(server) == []


@pytest.mark.parametrize(
    ("prompt", "rule"),
    [
        ("", "prompt must hold at least 1 token, got an empty text"),
        ([], "prompt must hold at least 1 id, got none"),
        ([-1], "prompt must hold integers of at least 0, got -1 at position 0"),
        ([5, True], "prompt must hold integers of at least 0, got True at position 1"),
        ([5, 10**9], "got 1000000000 at position 1"),
        ([5] * 100_000, "ids, got 100000"),
        (5, "prompt must be a list of ids, got int"),
        (None, "a job must have a prompt or a chat, got neither"),
        (b"ab", "prompt must be a list of ids, got bytes"),
        ({5: 6}, "prompt must be a list of ids, got dict"),
        ("Phileas \ud83d", "prompt must be text of whole characters, got surrogates not allowed at 8"),
    ],
)
def test_a_prompt_that_no_model_can_read_is_refused(server: redis.Redis, prompt: Any, rule: str) -> None:
    with pytest.raises(RequestError) as refusal:
        minilab_gen.submit(prompt)

    assert rule in str(refusal.value)
    assert queued(server) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 1.5),
        ("temperature", float("nan")),
        ("temperature", -1),
        ("temperature", "1"),
        ("top_k", 0),
        ("top_p", 0),
        ("top_p", float("inf")),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", False),
        ("seed", ""),
        ("seed", 0.0),
        ("stop_ids", 5),
        ("stop_ids", b"ab"),
        ("stop_ids", [10**9]),
        ("stop_ids", [-1]),
        ("timeout", 0),
        ("ttl", 0.5),
        ("priority", "urgent"),
        ("job_id", "a:b"),
        ("model", "a b"),
    ],
)
def test_a_bad_setting_is_refused_with_its_name(server: redis.Redis, setting: str, value: Any) -> None:
    with pytest.raises(RequestError, match=setting.split("_", maxsplit=1)[0]):
        minilab_gen.submit([5], **{setting: value})

    assert queued(server) == []


def test_an_unknown_model_is_refused(server: redis.Redis) -> None:
    with pytest.raises(UnknownModelError, match="no worker has announced the model nope"):
        minilab_gen.submit([5], model="nope")

    assert server.keys("rq:*") == []


def test_an_unknown_job_is_told_by_every_function(server: redis.Redis) -> None:
    for ask in (minilab_gen.result, minilab_gen.cancel, lambda job_id: list(minilab_gen.tail(job_id))):
        with pytest.raises(UnknownJobError, match="unknown or expired job: nope"):
            ask("nope")
    with pytest.raises(UnknownJobError, match="unknown or expired job: nope"):
        asyncio.run(read_async("nope"))
