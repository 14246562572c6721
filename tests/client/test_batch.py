"""``minilab-client batch`` on a fake Redis: what an earlier run left, how much is in flight, and what is said."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import redis
from minilab_client.batch.waiting import StallNotes
from rq.job import Job
from support.batch_files import (
    asked_model,
    custom_ids,
    good_lines,
    ids_of,
    own,
    records,
    write_lines,
)
from support.batch_runs import answer_earlier, batch, fail_earlier, is_queued, meanwhile, run_next
from support.client_program import client, end, queued, start, write
from support.waiting import wait_until

from minilab_gen.batch.pending_jobs import PendingJobs
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest


def test_an_empty_file_is_done_at_once(fake: redis.Redis, file: Path, out: Path) -> None:
    result = batch(write_lines(file), out)

    assert (result.exit_code, custom_ids(out)) == (0, [])


def test_a_file_without_a_single_good_line_is_bad_usage(fake: redis.Redis, file: Path, out: Path, errors: Path) -> None:
    assert batch(write_lines(file, "{", "["), out).exit_code == 2
    assert len(records(errors)) == 2


def test_a_finished_job_of_an_earlier_run_is_fetched_and_not_run(fake: redis.Redis, file: Path, out: Path) -> None:
    (line,) = good_lines(write_lines(file, own("a")))
    answer_earlier(fake, line)

    result = batch(file, out)

    assert result.exit_code == 0
    assert [ids_of(record) for record in records(out)] == [[[101, 102]]]
    assert queued(fake, "low") == []


def test_a_job_that_failed_in_an_earlier_run_is_tried_once_more_and_found_again(
    fake: redis.Redis, file: Path, out: Path
) -> None:
    (line,) = good_lines(write_lines(file, own("a")))
    fail_earlier(fake, line)
    fail_earlier(fake, line, attempt=1)
    answer_earlier(fake, line, attempt=2)

    assert batch(file, out).exit_code == 0

    assert [record["job_id"] for record in records(out)] == [line.job_id(2)]


def test_a_job_that_ends_badly_goes_to_the_errors_with_its_reason(
    fake: redis.Redis, file: Path, out: Path, errors: Path
) -> None:
    write_lines(file, *(own(name) for name in "abcd"))
    a, b, c, d = (line.job_id(0) for line in good_lines(file))

    def work() -> None:
        wait_until(lambda: len(queued(fake, "low")) == 4)
        for job_id in (a, b, d):
            start(fake, job_id)
            write(fake, job_id, "x", "y")
        end(fake, a, 2, "error", error="the model broke")
        end(fake, b, 2, "timeout", phase="running")
        endings.cancel(fake, c)
        end(fake, d, 2)

    with meanwhile(work):
        result = batch(file, out)

    assert result.exit_code == 1
    assert custom_ids(out) == ["d"]
    found = {record["custom_id"]: (record["line"], record["job_id"], record["error"]) for record in records(errors)}
    assert found == {
        "a": (1, a, {"code": "error", "message": "the job failed after 2 tokens: the model broke"}),
        "b": (2, b, {"code": "timeout", "message": "the job ran out of time after 2 tokens; give a longer --timeout"}),
        "c": (3, c, {"code": "cancelled", "message": "the job was cancelled after 0 tokens"}),
    }


def test_a_job_that_redis_forgets_is_submitted_again_but_not_for_ever(
    fake: redis.Redis, file: Path, out: Path, errors: Path
) -> None:
    (line,) = good_lines(write_lines(file, own("a")))

    def forget() -> None:
        for _ in range(4):
            wait_until(lambda: fake.exists(Job.key_for(line.job_id(0))))
            fake.delete(Job.key_for(line.job_id(0)))

    with meanwhile(forget):
        assert batch(file, out).exit_code == 1

    assert records(errors)[0]["error"]["code"] == "lost"


def test_a_finished_job_whose_answer_is_gone_is_done_again_as_the_next_attempt(
    fake: redis.Redis, file: Path, out: Path
) -> None:
    (line,) = good_lines(write_lines(file, own("a")))
    fake.delete(keys.token_stream(answer_earlier(fake, line)))

    def work() -> None:
        wait_until(lambda: queued(fake, "low"))
        run_next(fake)

    with meanwhile(work):
        assert batch(file, out).exit_code == 0

    assert records(out)[0]["job_id"] == line.job_id(1)


def test_a_stream_that_outlived_its_job_blocks_no_line(fake: redis.Redis, file: Path, out: Path) -> None:
    (line,) = good_lines(write_lines(file, own("a")))
    write(fake, line.job_id(0), "a", "b")

    def work() -> None:
        wait_until(lambda: queued(fake, "low"))
        run_next(fake)

    with meanwhile(work):
        assert batch(file, out).exit_code == 0

    assert records(out)[0]["job_id"] == line.job_id(1)


def test_no_more_jobs_are_in_flight_than_allowed(fake: redis.Redis, file: Path, out: Path) -> None:
    write_lines(file, *(own(f"{n}") for n in range(20)))
    most = []

    def work() -> None:
        for done in range(20):
            wait_until(partial(is_queued, fake, min(3, 20 - done)))
            most.append(len(queued(fake, "low")))
            run_next(fake)

    with meanwhile(work):
        assert batch(file, out, "--in-flight", "3").exit_code == 0

    assert max(most) == 3
    assert custom_ids(out) == [f"{n}" for n in range(20)]


def test_a_full_queue_is_waited_for(fake: redis.Redis, file: Path, out: Path) -> None:
    write_lines(file, own("a"), own("b"))
    enqueue(fake, GenerationRequest((5,)), Submission(job_id="another", priority="low"))

    def work() -> None:
        for _ in ("another", "a", "b"):
            wait_until(partial(is_queued, fake, 1))
            run_next(fake)

    with meanwhile(work):
        assert batch(file, out, "--max-queued", "1").exit_code == 0
    assert custom_ids(out) == ["a", "b"]


def test_priority_timeout_and_model_reach_the_jobs(fake: redis.Redis, file: Path, out: Path) -> None:
    (line,) = good_lines(write_lines(file, own("a")))

    def work() -> None:
        wait_until(lambda: queued(fake, "high"))
        assert fetch(fake, line.job_id(0)).timeout == 7
        run_next(fake, "high")

    with meanwhile(work):
        assert batch(file, out, "--priority", "high", "--timeout", "7").exit_code == 0
    assert "no worker has announced the model other" in batch(file, out, "--model", "other").stderr


def test_why_nothing_happens_is_said_once(fake: redis.Redis, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pending = PendingJobs(fake, Submission(priority="low"), "", at_once=1)
    pending.add(good_lines(write_lines(file, own("a")))[0])
    notes = StallNotes(fake, keys.queue_name(keys.DEFAULT_MODEL, "low"), quiet=False)

    for _ in range(3):
        notes.look(pending, any_ended=False)

    note = "waiting: no worker serves the queue minilab.base.low; start one in another terminal: minilab-worker\n"
    assert capsys.readouterr().err == note


def test_what_to_start_is_a_worker_of_the_model_that_is_asked(
    fake: redis.Redis, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pending = PendingJobs(fake, Submission("other"), "", at_once=1)
    pending.add(good_lines(write_lines(file, own("a")))[0])

    StallNotes(fake, keys.queue_name("other"), quiet=False).look(pending, any_ended=False)

    assert (
        ": minilab-worker --model ./other --name other, where ./other is its folder or GGUF file"
        in capsys.readouterr().err
    )


def test_quiet_says_only_what_goes_wrong(fake: redis.Redis, file: Path, out: Path) -> None:
    (line,) = good_lines(write_lines(file, own("a")))
    answer_earlier(fake, line)

    assert batch(file, out, "--quiet").output == ""
    assert "1 not: see out.errors.jsonl" in batch(write_lines(file, own("a"), "{"), out, "--quiet").stderr


def test_answers_of_another_model_that_are_kept_are_told(fake: redis.Redis, file: Path, out: Path) -> None:
    (line,) = good_lines(write_lines(file, own("a")))
    fake.hset(Job.key_for(answer_earlier(fake, line)), keys.FINGERPRINT_FIELD, "an earlier model")
    batch(file, out)
    card = replace(asked_model().card, fingerprint="the model of today")
    publish_card(fake, card, asked_model().tokenizer.to_json())

    result = batch(file, out)

    assert result.exit_code == 0
    assert "answers by an earlier model named base stay as they are: 1; " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("in.jsonl",), "Missing option '--output'"),
        (("absent.jsonl", "-o", "out.jsonl"), "'absent.jsonl' does not exist"),
        (("in.jsonl", "-o", "in.jsonl"), "IN and --output must be different files"),
        (("in.jsonl", "-o", "./in.jsonl"), "IN and --output must be different files"),
        (("in.jsonl", "-o", "out.jsonl", "--errors", "out.jsonl"), "--output and --errors must be different files"),
        (("in.jsonl", "-o", "out.jsonl", "--errors", "in.jsonl"), "IN and --errors must be different files"),
        (("in.jsonl", "-o", "absent/out.jsonl"), "out.jsonl cannot be used: No such file or directory"),
        (("in.jsonl", "-o", "out.jsonl", "--in-flight", "0"), "must be at least 1, got 0"),
        (("in.jsonl", "-o", "out.jsonl", "--timeout", "0"), "timeout must be a whole number from 1"),
        (("in.jsonl", "-o", "out.jsonl", "--model", "a b"), "a model name must be"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    fake: redis.Redis, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    write_lines(file, own("a"))
    monkeypatch.chdir(tmp_path)

    result = client("batch", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert complaint in line
    assert queued(fake, "low") == []
