"""Lines that ask for several answers: one line of output, from jobs that are found again one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from support.batch_files import answers_to, asked_model, good_lines, openai, own, records, write_lines
from support.batch_runs import answer_earlier, batch, fail_earlier, is_queued, meanwhile, run_next, submit_earlier
from support.client_program import end, queued, start
from support.references import reference_ids
from support.waiting import wait_until

from minilab_gen.batch import openai_form
from minilab_gen.batch.choices import choices_of
from minilab_gen.batch.line import Form, Line
from minilab_gen.batch.pending_jobs import PendingJobs
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer
from minilab_gen.protocol.submission import Submission
from minilab_gen.request import MAX_SEED, GenerationRequest, SamplingSettings


def line_of(file: Path, fields: dict[str, Any]) -> Line:
    (line,) = good_lines(write_lines(file, fields))
    return line


def seeds(line: Line) -> list[int]:
    return [choice.request.settings.seed for choice in choices_of(line)]


def test_a_line_in_our_form_gets_its_answers_in_one_line(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    line = line_of(file, own("a", temperature=1, seed=7, max_new_tokens=5, stop_ids=[], n=3))

    batch(file, out)

    ids = [reference_ids(served, choice.request) for choice in choices_of(line)]
    (record,) = records(out)
    assert record == {
        "custom_id": "a",
        "job_id": f"batch-{line.digest}_0",
        "seed": 7,
        "choices": [
            {
                "index": index,
                "job_id": f"batch-{line.digest}_{index}",
                "ids": ids[index],
                "seed": 7 + index,
                "end": "length",
                "tokens": 5,
                "prompt_tokens": 2,
                "text": served.tokenizer.decode(ids[index]),
            }
            for index in range(3)
        ],
        "tokens": 15,
        "prompt_tokens": 2,
        "model": "base",
        "fingerprint": served.card.fingerprint,
    }
    assert len({tuple(each) for each in ids}) == 3


@pytest.mark.parametrize("form", ["openai", "openai-chat"])
def test_a_line_in_openais_form_has_a_choice_for_each_answer(form: Form) -> None:
    request = GenerationRequest((5, 6, 7), 4, SamplingSettings(1.0, seed=7))
    line = Line(1, "a", form, request, 7, "d" * 32, n=2)
    first, second = choices_of(line)
    given = [
        (first, first.job_id(0), Answer((5, 6), "Fogg", EndEvent("length", 2, 3), 1.0, "f")),
        (second, second.job_id(1), Answer((5, 6, 0), "Paris", EndEvent("stop", 3, 3), 2.0, "f")),
    ]

    response = openai_form.answer(given, asked_model())["response"]

    body = response["body"]
    texts = [choice["text"] if form == "openai" else choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert texts == ["Fogg", "Paris"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "stop"]
    assert [choice["token_ids"] for choice in body["choices"]] == [[5, 6], [5, 6, 0]]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert (body["created"], body["seed"], response["request_id"]) == (2, 7, first.job_id(0))


def test_answers_are_those_that_generate_gives(
    file: Path, out: Path, errors: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    write_lines(
        file,
        own("greedy", n=2, max_new_tokens=4),
        own("sampled", n=4, temperature=1, max_new_tokens=6),
        openai("seeded", n=3, seed=MAX_SEED, max_tokens=5),
        openai("one", n=1, seed=3, max_tokens=5),
        openai("none", n=None, seed=3, max_tokens=5),
    )

    result = batch(file, out, "--in-flight", "2")

    assert (result.exit_code, errors.exists()) == (0, False)
    found = answers_to(good_lines(file), out)
    assert len(found) == 2 + 4 + 3 + 1 + 1
    assert all(ids == reference_ids(served, request) for request, ids in found)


def test_the_answers_of_a_line_have_the_seeds_after_its_own(file: Path) -> None:
    assert seeds(line_of(file, own("a", n=3, temperature=1, seed=MAX_SEED))) == [MAX_SEED, 0, 1]
    drawn = line_of(file, own("a", n=3, temperature=1))
    assert drawn.seed is not None
    assert seeds(drawn) == [(drawn.seed + index) % (MAX_SEED + 1) for index in range(3)]


def test_one_answer_is_the_same_line_as_without_a_number(file: Path) -> None:
    """And its job has the name that it had before there were several: else it would be run twice."""
    digests = {own: "2d78a98c1ca23f165eafc46d6874b20a", openai: "24562e087a836c92b6a764131620c495"}
    for form, digest in digests.items():
        plain, one, none = (line_of(file, form("a", **given)) for given in ({}, {"n": 1}, {"n": None}))
        assert plain.digest == one.digest == none.digest == digest
        assert line_of(file, form("a", n=2)).digest != digest


@pytest.mark.parametrize("n", [0, -1, 65, 1.5, True, "2", []])
def test_a_number_of_answers_out_of_range_is_refused(file: Path, out: Path, errors: Path, fake: object, n: Any) -> None:
    for form in (own, openai):
        write_lines(file, form("a", n=n))

        assert batch(file, out).exit_code == 2
        assert "n must be a whole number from 1 to 64, got" in records(errors)[0]["error"]["message"]


def test_jobs_of_an_earlier_run_are_found_again(fake: redis.Redis, file: Path, out: Path) -> None:
    line = line_of(file, own("a", n=3))
    first, second, third = choices_of(line)
    answer_earlier(fake, first)
    submit_earlier(fake, second)

    def work() -> None:
        wait_until(lambda: is_queued(fake, 2))
        assert queued(fake, "low") == [second.job_id(0), third.job_id(0)]
        run_next(fake)
        run_next(fake)

    with meanwhile(work):
        assert batch(file, out).exit_code == 0

    assert [choice["job_id"] for choice in records(out)[0]["choices"]] == [
        first.job_id(0),
        second.job_id(0),
        third.job_id(0),
    ]


def test_a_line_that_is_answered_is_not_done_again(fake: redis.Redis, file: Path, out: Path) -> None:
    line = line_of(file, own("a", n=2))
    for choice in choices_of(line):
        answer_earlier(fake, choice)
    batch(file, out)
    fake.flushall()

    again = batch(file, out)

    assert again.exit_code == 0
    assert "1 answered (1 earlier)" in again.stderr


def test_a_line_of_which_one_answer_fails_has_none_and_the_next_run_repeats_that_one(
    fake: redis.Redis, file: Path, out: Path, errors: Path
) -> None:
    line = line_of(file, openai("a", n=3))
    second = choices_of(line)[1]

    def fail_one() -> None:
        wait_until(lambda: is_queued(fake, 3))
        run_next(fake)
        start(fake, second.job_id(0))
        end(fake, second.job_id(0), 0, "error", error="the model broke")
        run_next(fake)

    with meanwhile(fail_one):
        assert batch(file, out).exit_code == 1
    assert records(out) == []
    (record,) = records(errors)
    assert (record["custom_id"], record["job_id"], record["error"]["code"]) == ("a", second.job_id(0), "error")
    assert record["error"]["message"] == "answer 1 of 3, from 0: the job failed after 0 tokens: the model broke"

    def repeat() -> None:
        wait_until(lambda: is_queued(fake, 1))
        assert queued(fake, "low") == [second.job_id(1)]
        run_next(fake)

    with meanwhile(repeat):
        assert batch(file, out).exit_code == 0
    assert len(records(out)[0]["response"]["body"]["choices"]) == 3


def test_no_more_jobs_than_asked_for_are_in_flight(fake: redis.Redis, file: Path) -> None:
    pending = PendingJobs(fake, Submission(priority="low"), "", at_once=3)
    for choice in choices_of(line_of(file, own("a", n=5))):
        pending.add(choice)

    for ended in range(3):
        pending.submit()
        assert len(queued(fake, "low")) == 3
        assert pending.free == 0
        run_next(fake)
        assert [each.line.choice for each in pending.collect()] == [ended]

    pending.submit()
    assert (len(queued(fake, "low")), pending.free) == (2, 1)


def test_a_failed_job_of_an_earlier_run_is_repeated_alone(fake: redis.Redis, file: Path, out: Path) -> None:
    line = line_of(file, own("a", n=2))
    first, second = choices_of(line)
    fail_earlier(fake, first)
    answer_earlier(fake, second)

    def work() -> None:
        wait_until(lambda: is_queued(fake, 1))
        run_next(fake)

    with meanwhile(work):
        assert batch(file, out).exit_code == 0

    assert [choice["job_id"] for choice in records(out)[0]["choices"]] == [first.job_id(1), second.job_id(0)]
