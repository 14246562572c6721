"""Jobs whose answers have a form, with real workers: among others, refused, cancelled, by ordinary RQ workers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import redis
from minilab_worker.serving import ServedModel
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from support.random_forms import form_of, has_form, random_form, schema_form
from support.references import ids_of, reference_ids
from support.served_jobs import StartWorker, base_queue, status, wait_for_end

from minilab_gen import tasks
from minilab_gen.protocol import results, verification
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.streams import read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest, SamplingSettings

pytestmark = pytest.mark.slow

PLAIN = GenerationRequest((5, 6), max_new_tokens=50, settings=SamplingSettings(temperature=1.0, seed=3))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
FORMED = replace(PLAIN, form=schema_form({**SCHEMA, "additionalProperties": False}))
REFUSED = replace(PLAIN, form=form_of(regex="a(?=b)"))


def test_jobs_with_forms_and_their_neighbours_get_the_tokens_that_they_get_alone(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    rng = random.Random(5)
    requests = [replace(PLAIN, settings=SamplingSettings(temperature=1.0, seed=seed)) for seed in range(24)]
    requests = [replace(each, form=random_form(rng)) if n % 3 else each for n, each in enumerate(requests)]

    job_ids = [enqueue(server, request, Submission()) for request in requests]

    for job_id, request in zip(job_ids, requests, strict=True):
        end = wait_for_end(server, job_id)
        assert ids_of(read_stream(server, job_id)) == reference_ids(served, request)
        assert (end.complete is None) == (request.form is None)
        found = results.result(server, job_id)
        assert found is not None
        assert request.form is None or not end.complete or has_form(found.text, request.form)


def test_the_end_says_whether_an_answer_that_was_cut_is_whole(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    cut, whole = replace(FORMED, max_new_tokens=5), replace(FORMED, form=form_of(regex="[a-z ]*"), max_new_tokens=5)
    stopped = replace(FORMED, stop=('"',))
    ends = [wait_for_end(server, enqueue(server, request, Submission())) for request in (cut, whole, stopped)]
    assert [(end.reason, end.complete) for end in ends] == [("length", False), ("length", True), ("stop", False)]


def test_an_answer_that_only_wants_white_space_is_whole_and_has_none(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    blank = [token for token in range(served.card.vocab_size) if served.tokenizer.token_bytes(token).isspace()]
    settings = SamplingSettings(logit_bias=dict.fromkeys(blank, 100.0))
    properties = {"a": {"enum": [17]}}
    form = schema_form({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False})
    job_id = enqueue(server, replace(PLAIN, settings=settings, form=form), Submission())
    end, found = wait_for_end(server, job_id), results.result(server, job_id)
    assert (end.reason, end.complete, found and found.text) == ("stop", True, '{"a":17}')


def test_digits_without_end_are_cut_and_not_called_whole(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    digits = [token for token in range(served.card.vocab_size) if served.tokenizer.token_bytes(token).isdigit()]
    settings = SamplingSettings(logit_bias=dict.fromkeys(digits, 100.0))
    form = schema_form({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    end = wait_for_end(server, enqueue(server, replace(PLAIN, settings=settings, form=form), Submission()))
    assert (end.reason, end.complete) == ("length", False)


def test_a_form_that_cannot_be_compiled_fails_its_job_alone_with_the_reason(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker
) -> None:
    start_worker()
    job_ids = [enqueue(server, request, Submission()) for request in (REFUSED, PLAIN, FORMED, REFUSED)]
    ends = [wait_for_end(server, job_id) for job_id in job_ids]
    assert [end.reason for end in ends] == ["error", "length", "stop", "error"]
    assert "the regex cannot be compiled" in str(ends[0].error)
    assert "look-ahead" in str(ends[0].error)
    assert [end.refused for end in ends] == [True, None, None, True]
    assert ids_of(read_stream(server, job_ids[1])) == reference_ids(served, PLAIN)


def test_others_go_on_while_a_form_is_compiled_and_its_job_can_be_cancelled(
    server: redis.Redis, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = threading.Event()

    def slow(grammar: str) -> str | None:
        assert compiled.wait(60)
        return None

    monkeypatch.setattr("minilab_gen.constraints.trial.fault_of", slow)
    start_worker()
    try:
        first, second = enqueue(server, FORMED, Submission()), enqueue(server, FORMED, Submission())
        assert wait_for_end(server, enqueue(server, PLAIN, Submission())).reason == "length"
        cancel(server, first)
        assert wait_for_end(server, first).reason == "cancelled"
        assert status(server, second) == "started"
    finally:
        compiled.set()
    assert wait_for_end(server, second).reason == "stop"


def test_a_worker_that_drains_returns_a_job_whose_form_is_compiled(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, compiled = threading.Event(), threading.Event()

    def slow(grammar: str) -> str | None:
        started.set()
        assert compiled.wait(60)
        return None

    monkeypatch.setattr("minilab_gen.constraints.trial.fault_of", slow)
    worker = start_worker()
    job_id = enqueue(server, FORMED, Submission())
    assert started.wait(60)
    worker.stop()
    worker.stop()  # at once
    compiled.set()
    start_worker()
    assert wait_for_end(server, job_id).reason == "stop"
    assert ids_of(read_stream(server, job_id)) == reference_ids(served, FORMED)


def test_an_ordinary_rq_worker_gives_the_same_tokens(
    server: redis.Redis, served: ServedModel, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.MODEL_VARIABLE, "")
    plain = replace(FORMED, stop_ids=())
    ours = enqueue(server, plain, Submission())
    queue = base_queue(server)
    rq_worker = SimpleWorker([queue], connection=server, serializer=JSONSerializer)
    rq_worker.work(burst=True)
    refused = enqueue(server, REFUSED, Submission())
    rq_worker.work(burst=True)

    assert wait_for_end(server, refused).reason == "error"
    assert "look-ahead" in str(wait_for_end(server, refused).error)
    end, found = wait_for_end(server, ours), results.result(server, ours)
    assert found is not None
    assert plain.form is not None
    assert (end.reason, end.complete, has_form(found.text, plain.form)) == ("stop", True, True)


def test_jobs_with_forms_are_verified_and_a_compressed_result_keeps_whether_they_are_whole(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    start_worker()
    job_ids = [enqueue(server, request, Submission()) for request in (FORMED, replace(FORMED, max_new_tokens=4))]
    for job_id in job_ids:
        wait_for_end(server, job_id)
    found = list(verification.verify(server, job_ids, "low"))
    assert all(isinstance(each, verification.Verification) and each.equal for each in found), found
    kept = results.answers(server, job_ids)
    assert [each and each.end.complete for each in kept] == [True, False]


def test_a_worker_does_not_load_llguidance_before_a_job_needs_it() -> None:
    script = """
import sys
import minilab_worker.cli, minilab_worker.worker, minilab_gen.tasks
from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.text.tokenizer import get_tokenizer
FormCompiler(get_tokenizer(), 2048)
assert "llguidance" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
