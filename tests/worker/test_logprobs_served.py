"""Jobs with logprobs and real workers: the same in any batch, after a kill, in ordinary RQ workers, and verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis
import torch
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from minilab_worker.serving import ServedModel
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer
from support.client_program import client
from support.engines import slow_engine
from support.own_service import LONG, OwnService
from support.served_jobs import StartWorker, wait_for_end
from support.verification import alter, books, nothing_is_left
from support.waiting import wait_until

import minilab_gen
from minilab_gen import tasks
from minilab_gen.generate import generate, logprobs
from minilab_gen.logprobs import PromptLogprobs, TokenLogprobs, prompt_to_text
from minilab_gen.models.checkpoint import load
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import Event, TokenEvent
from minilab_gen.protocol.results import answers, read_prompt_logprobs, result
from minilab_gen.protocol.streams import publish, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest, SamplingSettings

BOTH = GenerationRequest((5, 6, 7), 30, SamplingSettings(0.8, seed=11), logprobs=2, prompt_logprobs=1)


def reference_logprobs(served: ServedModel, request: GenerationRequest) -> list[TokenLogprobs]:
    if not request.max_new_tokens:
        return []
    steps = generate(served.model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids)
    return [logprobs(step.logits, step.token_id, request.logprobs or 0) for step in steps]


def reference_scores(served: ServedModel, request: GenerationRequest) -> PromptLogprobs:
    logits, _ = served.model(torch.tensor([request.prompt]))
    rows = zip(logits[0], request.prompt[1:], strict=False)
    return (None, *(logprobs(row, token, request.prompt_logprobs or 0) for row, token in rows))


def listed(events: list[Event]) -> list[TokenLogprobs | None]:
    return [event.logprobs for event in events if isinstance(event, TokenEvent)]


def wait_until_recorded(connection: redis.Redis, job_id: str) -> None:
    wait_until(lambda: Job.fetch(job_id, connection, serializer=JSONSerializer).latest_result() is not None)


def test_jobs_have_their_logprobs_whatever_runs_beside_them(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    requests = [
        replace(
            BOTH,
            prompt=tuple(range(5, 7 + n)),
            max_new_tokens=n % 4 * 6,
            settings=SamplingSettings(n % 2, seed=n),
            logprobs=(None, 0, 3, 20)[n // 4 % 4],
            prompt_logprobs=0 if n % 4 == 0 else (None, 0, 5)[n % 3],
        )
        for n in range(24)
    ]

    job_ids = [enqueue(server, request, Submission()) for request in requests]

    for job_id, request in zip(job_ids, requests, strict=True):
        wait_for_end(server, job_id)
        wait_until_recorded(server, job_id)
        found = result(server, job_id)
        assert found is not None
        wanted = None if request.logprobs is None else tuple(reference_logprobs(served, request))
        assert found.logprobs == wanted
        assert found.prompt_logprobs == (None if request.prompt_logprobs is None else reference_scores(served, request))
        assert len(found.ids) == request.max_new_tokens
        (answer,) = answers(server, [job_id])
        assert answer is not None
        assert (answer.logprobs, answer.prompt_logprobs) == (found.logprobs, found.prompt_logprobs)


def test_programs_ask_for_logprobs_and_read_them(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()

    job_id = minilab_gen.submit((5, 6, 7), max_new_tokens=5, stop_ids=(), logprobs=1, prompt_logprobs=0)

    events = list(minilab_gen.tail(job_id))
    request = GenerationRequest((5, 6, 7), 5, logprobs=1, prompt_logprobs=0)
    assert listed(events) == reference_logprobs(served, request)
    found = minilab_gen.result(job_id)
    assert found is not None
    assert found.logprobs == tuple(listed(events))
    assert found.prompt_logprobs == reference_scores(served, request)
    with pytest.raises(minilab_gen.MiniLabError, match="logprobs must be at most 20, got 21"):
        minilab_gen.submit("a", logprobs=21)


def test_every_token_has_its_logprobs_also_where_its_text_is_held_back(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    plain = replace(BOTH, settings=SamplingSettings(1.0, seed=3))
    ids = [step.token_id for step in generate(served.model, plain.prompt, 30, plain.settings)]
    text = served.tokenizer.decode(ids)
    request = replace(plain, stop=(text[20:24], "no such text"))

    job_id = enqueue(server, request, Submission())
    end = wait_for_end(server, job_id)

    stream = read_stream(server, job_id)
    assert end.reason == "stop"
    assert listed(stream) == reference_logprobs(served, plain)[: end.tokens]
    assert read_prompt_logprobs(server, job_id) == reference_scores(served, plain)


def test_logprobs_of_a_prompt_come_and_expire_with_the_end_and_only_with_an_answer(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker(engine=slow_engine)
    job_id, stopped = (enqueue(server, replace(BOTH, max_new_tokens=50), Submission()) for _ in range(2))
    wait_until(lambda: server.xlen(keys.token_stream(stopped)) > 5)

    assert not server.exists(keys.prompt_logprobs(job_id))
    cancel(server, stopped)
    wait_for_end(server, stopped)
    wait_for_end(server, job_id)

    assert server.ttl(keys.prompt_logprobs(job_id)) == pytest.approx(server.ttl(keys.token_stream(job_id)), abs=2)
    assert not server.exists(keys.prompt_logprobs(stopped))
    assert None not in listed(read_stream(server, stopped))


def test_a_stream_that_has_its_end_keeps_the_logprobs_of_its_prompt(server: redis.Redis) -> None:
    transcript = Transcript(replace(BOTH, max_new_tokens=1))
    end = transcript.close("length")
    for text in ("[null,[-1.0]]", "[null,[-2.0]]"):
        publish(server, [("x", end)], running_ttl=600, prompt_logprobs=text)

    assert server.get(keys.prompt_logprobs("x")) == b"[null,[-1.0]]"
    assert 0 < server.ttl(keys.prompt_logprobs("x")) <= keys.RETENTION


def test_verify_compares_logprobs_and_leaves_nothing(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    good, token, prompt, scored = (
        enqueue(server, replace(BOTH, max_new_tokens=tokens), Submission()) for tokens in (9, 9, 9, 0)
    )
    for job_id in (good, token, prompt, scored):
        wait_for_end(server, job_id)
        wait_until_recorded(server, job_id)
    alter(server, token, 4, logprobs=TokenLogprobs(-0.5))
    scores = reference_scores(served, BOTH)
    server.set(keys.prompt_logprobs(prompt), prompt_to_text([*scores[:2], TokenLogprobs(-0.5)]), ex=600)
    before = books(server)

    verified = client("verify", good, token, prompt, scored)

    said = [line.partition("  ")[2] for line in verified.stdout.splitlines()]
    assert said[0] == "equal: 9 tokens, and the logprobs of the prompt"
    assert said[1].startswith("the logprobs of token 4 differ: stored [-0.5], recomputed [")
    assert said[2].startswith("the logprobs of prompt token 2 differ: stored TokenLogprobs(logprob=-0.5")
    assert said[3] == "equal: 0 tokens, and the logprobs of the prompt"
    assert verified.exit_code == 1
    assert nothing_is_left(server)
    assert books(server).keys() == before.keys()


@pytest.mark.parametrize("so_far", [0, 1, 9, 30])
def test_an_ordinary_rq_worker_writes_the_same_stream_and_the_same_scores(
    server: redis.Redis, served: ServedModel, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, so_far: int
) -> None:
    monkeypatch.setenv(tasks.MODEL_VARIABLE, str(small_checkpoint))
    tasks._loading.cache_clear()
    run_here = _runner(server)
    whole = enqueue(server, BOTH, Submission())
    run_here(whole)
    rest = enqueue(server, BOTH, Submission())
    publish(server, [(rest, event) for event in read_stream(server, whole)[:so_far]], running_ttl=600)

    run_here(rest)
    scored = enqueue(server, replace(BOTH, max_new_tokens=0), Submission())
    run_here(scored)

    assert listed(read_stream(server, whole)) == reference_logprobs(served, BOTH)
    assert read_stream(server, rest) == read_stream(server, whole)
    for job_id in (whole, rest, scored):
        assert read_prompt_logprobs(server, job_id) == reference_scores(served, BOTH)


def _runner(server: redis.Redis) -> Callable[[str], None]:
    def run(job_id: str) -> None:
        worker = SimpleWorker([keys.queue_name("base")], connection=server, serializer=JSONSerializer)
        job = Job.fetch(job_id, server, serializer=JSONSerializer)
        worker.execute_job(job, Queue(keys.queue_name("base"), connection=server))

    return run


# Processes

needs_redis = pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")


@needs_redis
def test_a_killed_worker_changes_no_logprob_of_the_answer_or_of_the_prompt(
    own_service: OwnService, slow_checkpoint: Path
) -> None:
    request = replace(LONG, prompt=tuple(range(5, 25)), logprobs=5, prompt_logprobs=2)
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit(request)
    own_service.wait_for_token(job_id, 20)

    worker.kill()
    seen = own_service.tokens(job_id)
    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")
    undisturbed = own_service.submit(request)
    own_service.wait_for_status(undisturbed, "finished")

    stream = own_service.stream(job_id)
    assert 20 <= seen < len(stream) - 1
    assert stream == own_service.stream(undisturbed)
    assert None not in listed(stream)
    scores = own_service.connection.get(keys.prompt_logprobs(job_id))
    assert scores == own_service.connection.get(keys.prompt_logprobs(undisturbed))
    logits, _ = load(slow_checkpoint)(torch.tensor([request.prompt]))
    rows = zip(logits[0], request.prompt[1:], strict=False)
    assert read_prompt_logprobs(own_service.connection, job_id) == (
        None,
        *(logprobs(row, token, 2) for row, token in rows),
    )
    own_service.assert_nothing_is_left()


@needs_redis
def test_a_worker_that_is_killed_before_the_end_leaves_the_scores_to_the_next(own_service: OwnService) -> None:
    request = replace(LONG, prompt_logprobs=0)
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit(request)
    own_service.wait_for_token(job_id, 5)
    worker.kill()
    rest = [TokenEvent(n, token, "") for n, token in enumerate(own_service.answer(), start=1)]
    unwritten = rest[own_service.tokens(job_id) :]
    publish(own_service.connection, [(job_id, event) for event in unwritten], running_ttl=600)  # its last act

    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")

    scores = read_prompt_logprobs(own_service.connection, job_id)
    assert scores is not None
    assert len(scores) == len(request.prompt)
    own_service.assert_answered(job_id)
