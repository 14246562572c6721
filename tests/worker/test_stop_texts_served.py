"""Jobs that end at a stop text, with real workers: alone and among others, taken over, by ordinary RQ workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.telemetry.counters import Counters
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import JobTimeoutException
from support.client_program import client
from support.engines import slow_engine
from support.memory_service import Service
from support.references import reference_ids
from support.served_jobs import StartWorker, wait_for_end
from support.waiting import wait_until

from minilab_gen import tasks
from minilab_gen.engine import Chosen, Engine, Outcome
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.streams import publish, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest, SamplingSettings

PLAIN = GenerationRequest((5, 6), max_new_tokens=60, settings=SamplingSettings(temperature=1.0, seed=3))


def text_of(served: ServedModel, request: GenerationRequest) -> str:
    """The answer without stop texts."""
    decoder = served.tokenizer.decoder(request.prompt)
    return "".join(map(decoder.push, reference_ids(served, request))) + decoder.flush()


def stopping(served: ServedModel, request: GenerationRequest = PLAIN, at: int = 40) -> GenerationRequest:
    """The same request with three characters of its answer as a stop text."""
    return replace(request, stop=(text_of(served, request)[at : at + 3],))


def written(served: ServedModel, request: GenerationRequest) -> list[Event]:
    """The whole stream of a job, without a worker."""
    transcript = Transcript(request, served.tokenizer)
    for token_id in reference_ids(served, request):
        transcript.add(token_id)
        if transcript.has_stopped():
            transcript.close("stop")
            return transcript.events
    transcript.close("length")
    return transcript.events


def recorded(connection: redis.Redis, job_id: str) -> object:
    """RQ's return value of a job, once it has one."""

    def fetched() -> Job:
        return Job.fetch(job_id, connection, serializer=JSONSerializer)

    wait_until(lambda: fetched().latest_result() is not None)
    result = fetched().latest_result()
    assert result is not None
    return result.return_value


def test_jobs_with_stop_texts_end_there_and_their_neighbours_go_on(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    worker = start_worker()
    plain = [replace(PLAIN, settings=SamplingSettings(temperature=1.0, seed=seed)) for seed in range(24)]
    requests = [stopping(served, request, 10 + n) if n % 3 else request for n, request in enumerate(plain)]

    job_ids = [enqueue(server, request, Submission()) for request in requests]

    for job_id, request in zip(job_ids, requests, strict=True):
        end = wait_for_end(server, job_id)
        assert read_stream(server, job_id) == written(served, request)
        assert (end.reason == "stop", end.stop_text) == (bool(request.stop), request.stop[0] if request.stop else None)
        if request.stop:
            result = recorded(server, job_id)
            assert isinstance(result, dict)
            shown = text_of(served, replace(request, stop=()))
            assert result["text"] == shown[: shown.index(request.stop[0])]
            assert (result["tokens"], len(result["ids"]), result["stop_text"]) == (
                end.tokens,
                end.tokens,
                end.stop_text,
            )
    wait_until(lambda: worker.used == 0)


def test_with_include_stop_the_text_ends_with_it(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    request = replace(stopping(served), include_stop=True)

    job_id = enqueue(server, request, Submission())
    wait_for_end(server, job_id)

    whole, (stop,) = text_of(served, PLAIN), request.stop
    assert "".join(event.text for event in read_stream(server, job_id)) == whole[: whole.index(stop) + len(stop)]


class CountingEngine(Engine):
    """Counts the tokens that it chooses."""

    chosen = 0

    def step(self) -> list[Outcome]:
        outcomes = super().step()
        self.chosen += sum(isinstance(outcome, Chosen) for outcome in outcomes)
        return outcomes


@pytest.fixture
def service(served: ServedModel) -> Iterator[Service]:
    service = Service(served)
    yield service
    service.stop()


@pytest.mark.slow
def test_no_token_is_chosen_after_the_stop_text(service: Service, served: ServedModel) -> None:
    engines: list[CountingEngine] = []

    def counting(served: ServedModel, max_batch: int, counters: Counters) -> Engine:
        engines.append(CountingEngine(served.model, max_batch, on_phase=counters.clock.end_phase))
        return engines[-1]

    service.queue.submit("job", stopping(served))
    worker, _, _ = service.start(engine=counting)
    wait_until(lambda: service.has_ended("job") and worker.used == 0)

    assert service.queue.streams["job"] == written(served, stopping(served))
    assert [engine.chosen for engine in engines] == [len(service.queue.streams["job"]) - 1]
    worker.check_idle()


@pytest.fixture(params=["", "cancelled", "killer"])
def left(request: pytest.FixtureRequest, server: redis.Redis, served: ServedModel) -> tuple[str, list[Event]]:
    """A job whose worker was killed between the token that completed the stop text and the terminal entry."""
    job_id = enqueue(server, stopping(served), Submission())
    events = written(served, stopping(served))
    publish(server, [(job_id, event) for event in events[:-1]], running_ttl=600)
    server.hset(Job.key_for(job_id), keys.FINGERPRINT_FIELD, served.card.fingerprint)
    if request.param == "cancelled":
        server.set(keys.cancel_flag(job_id), 1, ex=600)
    elif request.param == "killer":
        server.set(keys.expired_leases(job_id), 3, ex=600)
    return job_id, events


def test_a_stop_text_in_the_stream_ends_the_job_at_once_whatever_came_after_it(
    server: redis.Redis, left: tuple[str, list[Event]], start_worker: StartWorker
) -> None:
    job_id, events = left
    start_worker(engine=slow_engine)

    wait_for_end(server, job_id)

    assert read_stream(server, job_id) == events
    assert recorded(server, job_id) is not None


def test_verify_finds_answers_equal_that_ended_at_a_stop_text(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    job_ids = [enqueue(server, stopping(served, at=at), Submission()) for at in (5, 20, 60)]
    for job_id in job_ids:
        wait_for_end(server, job_id)
        recorded(server, job_id)

    result = client("verify", *job_ids)

    assert (result.exit_code, result.stdout.count("equal: ")) == (0, 3), result.output


# Ordinary RQ workers


@pytest.fixture
def run_here(server: redis.Redis, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What a SimpleWorker does with a job."""
    monkeypatch.setenv(tasks.MODEL_VARIABLE, str(small_checkpoint))
    tasks._loading.cache_clear()

    def run(job_id: str) -> None:
        worker = SimpleWorker([keys.queue_name("base")], connection=server, serializer=JSONSerializer)
        job = Job.fetch(job_id, server, serializer=JSONSerializer)
        worker.execute_job(job, Queue(keys.queue_name("base"), connection=server))

    return run


def test_an_ordinary_rq_worker_writes_the_same_stream(
    server: redis.Redis, served: ServedModel, run_here: Callable[[str], None]
) -> None:
    job_id = enqueue(server, stopping(served), Submission())

    run_here(job_id)

    assert read_stream(server, job_id) == written(served, stopping(served))


def test_an_ordinary_rq_worker_ends_at_once_what_the_stream_shows_to_be_over(
    server: redis.Redis, served: ServedModel, run_here: Callable[[str], None]
) -> None:
    job_id = enqueue(server, stopping(served), Submission())
    events = written(served, stopping(served))
    publish(server, [(job_id, event) for event in events[:-1]], running_ttl=600)

    run_here(job_id)

    assert read_stream(server, job_id) == events


def test_the_token_that_completes_a_stop_text_is_published_with_the_end(
    server: redis.Redis, served: ServedModel, run_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ's alarm may ring in between, and then neither is there."""
    events = written(served, stopping(served))
    close = Transcript.close
    rung: list[str] = []

    def interrupted(transcript: Transcript, *arguments: object, **details: object) -> EndEvent:
        if not rung:
            rung.append("now")
            raise JobTimeoutException("the alarm")
        return close(transcript, *arguments, **details)  # type: ignore[arg-type]

    monkeypatch.setattr(Transcript, "close", interrupted)
    job_id = enqueue(server, stopping(served), Submission())

    run_here(job_id)

    assert read_stream(server, job_id) == events[:-2]
