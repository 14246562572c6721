"""Jobs with stop texts whose workers are killed or paused, as processes: readers see the text before the stop text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from support.client_process import Program
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]

_SEEN = 20
"""Tokens after which something happens to the worker."""


@cache
def tokenizer() -> Tokenizer:
    return get_tokenizer()


def text_of(service: OwnService) -> str:
    return tokenizer().decode(service.answer())


def late_stop(service: OwnService) -> str:
    """Three characters that come first behind the 60th token of the answer."""
    text, begun = text_of(service), len(tokenizer().decode(service.answer()[:60]))
    return next(text[at : at + 3] for at in range(begun, len(text)) if text.index(text[at : at + 3]) == at)


def written(service: OwnService, request: GenerationRequest) -> list[Event]:
    """The whole stream of the job, without a worker."""
    transcript = Transcript(request, tokenizer())
    for token_id in service.answer():
        transcript.add(token_id)
        if transcript.has_stopped():
            transcript.close("stop")
            return transcript.events
    raise AssertionError("the answer must hold the stop text")


def test_a_reader_gets_the_text_before_the_stop_text_though_the_only_worker_is_killed(own_service: OwnService) -> None:
    stop = late_stop(own_service)
    worker = own_service.fleet.start_and_wait()
    asked = ["--ids", "5,6,7", "--max-new-tokens", "100", "--temperature", "0.8", "--seed", "11", "--stop", stop]
    with Program(own_service.server.url, "submit", *asked, "--job-id", "x", "--follow") as reader:
        wait_until(lambda: own_service.connection.exists("rq:job:x"), LIMIT)
        own_service.wait_for_token("x", _SEEN)

        worker.kill()
        seen = own_service.tokens("x")
        own_service.fleet.start(kernels=FAST_KERNELS)
        printed = reader.output.read()
        code, complaints = reader.ended()

    text = text_of(own_service)
    assert (code, "Traceback" in complaints) == (0, False)
    assert printed.rstrip("\n") == text[: text.index(stop)].rstrip("\n")
    stream = own_service.stream("x")
    assert stream == written(own_service, replace(LONG, stop=(stop,)))
    assert _SEEN <= seen < len(stream) - 1
    own_service.wait_for_status("x", "finished")
    own_service.assert_nothing_is_left()


def test_nothing_is_generated_where_a_worker_is_killed_between_stop_text_and_end(own_service: OwnService) -> None:
    request = replace(LONG, stop=(late_stop(own_service),))
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit(request)
    own_service.wait_for_token(job_id, _SEEN)
    worker.kill()
    whole = written(own_service, request)
    rest = whole[own_service.tokens(job_id) : -1]
    publish(own_service.connection, [(job_id, event) for event in rest], running_ttl=600)  # its last act, if it had not

    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")

    assert own_service.stream(job_id) == whole
    own_service.assert_nothing_is_left()


def test_a_worker_that_slept_while_another_found_the_stop_text_changes_nothing(own_service: OwnService) -> None:
    request = replace(LONG, stop=(late_stop(own_service),))
    for _ in range(2):
        own_service.fleet.start()
    for worker in own_service.fleet.workers:
        own_service.fleet.wait_until_serving(worker)
    job_id = own_service.submit(request)
    own_service.wait_for_token(job_id, _SEEN)

    sleeper = own_service.holder(job_id)
    sleeper.sleep()
    own_service.wait_for_status(job_id, "finished")
    sleeper.wake()
    wait_until(lambda: "another worker has taken the job over" in sleeper.said, LIMIT)
    own_service.fleet.stop_all()

    stream = own_service.stream(job_id)
    assert isinstance(stream[-1], EndEvent)
    assert stream == written(own_service, request)
    assert own_service.successes() == 1
