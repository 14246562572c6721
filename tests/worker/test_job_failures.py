"""What goes wrong with one job ends that job with the reason; its neighbours and its worker continue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from support.references import reference_ids
from support.waiting import wait_until

from minilab_gen.engine import Engine, Sequence
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest
from minilab_gen.text.stream_decoder import StreamDecoder
from minilab_gen.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

GOOD = GenerationRequest((5, 6), max_new_tokens=20)
BAD = GenerationRequest((9, 9, 9), max_new_tokens=20)

Serve = Callable[[ServedModel], Worker]


@pytest.fixture
def serve(server: redis.Redis) -> Iterator[Serve]:
    """Start workers in threads; all are stopped at the end, and must then have outlived their jobs."""
    with ExitStack() as stack:

        def start(served: ServedModel) -> Worker:
            worker = Worker(WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), 4), served)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            return worker

        yield start


def end_of(connection: redis.Redis, job_id: str) -> EndEvent:
    """Its terminal entry; not by a reader, which would wait for ever for a worker whose lease has expired."""
    wait_until(lambda: stream_length(connection, job_id)[1] is not None)
    _, end = stream_length(connection, job_id)
    assert end is not None
    return end


def assert_only_the_bad_one_fails(connection: redis.Redis, served: ServedModel, worker: Worker, reason: str) -> None:
    """Of a good job, a bad one and a later good one."""
    early, bad = (enqueue(connection, request, Submission()) for request in (GOOD, BAD))
    end = end_of(connection, bad)
    late = enqueue(connection, GOOD, Submission())

    assert end.reason == "error"
    assert reason in (end.error or "")
    for job_id in (early, late):
        assert end_of(connection, job_id).succeeded
        answer = result(connection, job_id)
        assert answer is not None
        assert list(answer.ids) == reference_ids(served, GOOD)
    wait_until(lambda: worker.done == 3)
    assert fetch(connection, bad).get_status().value == "failed"
    assert worker.used == 0


def test_a_job_that_does_not_fit_the_engine_fails_alone(server: redis.Redis, served: ServedModel, serve: Serve) -> None:
    """The card promises more than the engine can hold."""
    cramped = replace(served, kv_tokens=22)

    worker = serve(cramped)

    assert_only_the_bad_one_fails(server, served, worker, "22")


def test_a_job_at_which_the_engine_stumbles_fails_alone(
    server: redis.Redis, served: ServedModel, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(engine: Engine, sequence: Sequence) -> None:
        if sequence.request == BAD:
            raise MemoryError("no room for a sampler")
        whole_add(engine, sequence)

    whole_add = Engine.add
    monkeypatch.setattr(Engine, "add", add)

    worker = serve(served)

    assert_only_the_bad_one_fails(server, served, worker, "MemoryError: no room for a sampler")


class Mute(Tokenizer):
    """A tokenizer that makes no text of what follows the bad prompt."""

    def decoder(self, prompt: Iterable[int] = ()) -> StreamDecoder:
        ids = tuple(prompt)
        return NoText() if ids == BAD.prompt else super().decoder(ids)


class Closed(Tokenizer):
    """One that does not even begin to."""

    def decoder(self, prompt: Iterable[int] = ()) -> StreamDecoder:
        ids = tuple(prompt)
        if ids == BAD.prompt:
            raise KeyError("no such piece")
        return super().decoder(ids)


class NoText:
    def push(self, token_id: int) -> str:
        raise KeyError("no such piece")

    def flush(self) -> str:
        raise KeyError("no such piece")


@pytest.mark.parametrize(
    ("kind", "reason"), [(Mute, "KeyError: 'no such piece'"), (Closed, "cannot be read: KeyError")]
)
def test_a_job_whose_tokens_cannot_be_made_text_fails_alone(
    server: redis.Redis, served: ServedModel, serve: Serve, kind: type[Tokenizer], reason: str
) -> None:
    worker = serve(replace(served, tokenizer=kind.from_json(served.tokenizer.to_json())))

    assert_only_the_bad_one_fails(server, served, worker, reason)
