"""``minilab-client batch``: every line gets its answer or its reason, and a second run does only what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import redis
from click.testing import Result
from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.line import Line
from minilab_client.batch.pending_jobs import PendingJobs
from minilab_client.batch.waiting import StallNotes
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from rq.job import Job
from support.batch_files import (
    answers_to,
    asked_model,
    custom_ids,
    good_lines,
    ids_of,
    openai,
    own,
    records,
    write_lines,
)
from support.client_program import client, end, fake_redis, queued, start, write
from support.waiting import wait_until

from minilab_gen.generate import generate
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the lines of a test stand."""
    return tmp_path / "in.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def errors(tmp_path: Path) -> Path:
    """Where errors go when nothing else is said."""
    return tmp_path / "out.errors.jsonl"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


def batch(file: Path, out: Path, *options: str) -> Result:
    return client("batch", str(file), "--output", str(out), *options)


def model_of(served: ServedModel) -> AskedModel:
    """The model of the tests' worker as a client sees it."""
    return AskedModel(served.card, served.tokenizer)


def reference_ids(served: ServedModel, request: GenerationRequest) -> list[int]:
    steps = generate(served.model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids)
    return [step.token_id for step in steps]


def submit_earlier(connection: redis.Redis, line: Line, attempt: int = 0) -> str:
    """A line's job as an earlier run left it in the queue."""
    return enqueue(connection, line.request, Submission(job_id=line.job_id(attempt), priority="low"))


def answer_earlier(connection: redis.Redis, line: Line, attempt: int = 0) -> str:
    """The same, answered meanwhile with the tokens 101 and 102."""
    job_id = submit_earlier(connection, line, attempt)
    start(connection, job_id)
    write(connection, job_id, "a", "b")
    end(connection, job_id, 2)
    return job_id


def run_next(connection: redis.Redis, priority: keys.Priority = "low") -> None:
    """Answer the job that has waited longest, as a worker does."""
    job_id = queued(connection, priority)[0]
    start(connection, job_id)
    write(connection, job_id, "a", "b")
    end(connection, job_id, 2)


def is_queued(connection: redis.Redis, count: int) -> bool:
    """Whether so many jobs wait, and no more."""
    return len(queued(connection, "low")) == count


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Let something happen while the program runs; what goes wrong there is raised here."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        yield
        running.result()


def fail_earlier(connection: redis.Redis, line: Line, attempt: int = 0) -> None:
    """The same, but that it has failed."""
    job_id = submit_earlier(connection, line, attempt)
    start(connection, job_id)
    end(connection, job_id, 0, "error", error="the model broke")


def test_every_line_gets_the_tokens_that_generate_gives(
    file: Path, out: Path, errors: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    texts = ("Phileas Fogg", "Le", "à bord du Nautilus,")
    write_lines(
        file,
        *(own(f"own-{n}", texts[n % 3], temperature=n % 4 / 2, max_new_tokens=1 + n) for n in range(40)),
        *(openai(f"openai-{n}", texts[n % 3], top_p=0.9, seed=n) for n in range(20)),
    )

    result = batch(file, out)

    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    lines = good_lines(file, model_of(served))
    assert len(lines) == 60
    assert all(ids == reference_ids(served, request) for request, ids in answers_to(lines, out))
    assert not errors.exists()
    assert "60 answered; " in result.stderr


def test_an_answer_in_our_form_says_all_about_its_job(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    (line,) = good_lines(write_lines(file, own("a", temperature=1, max_new_tokens=5)), model_of(served))

    batch(file, out)

    ids = reference_ids(served, line.request)
    (record,) = records(out)
    assert record == {
        "custom_id": "a",
        "job_id": line.job_id(0),
        "ids": ids,
        "seed": line.seed,
        "end": "length",
        "tokens": 5,
        "prompt_tokens": 2,
        "text": served.tokenizer.decode(ids),
        "model": "base",
        "fingerprint": served.card.fingerprint,
    }


def test_an_answer_in_openais_form_has_its_fields_and_the_seed(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    (line,) = good_lines(write_lines(file, openai("a", max_tokens=5)), model_of(served))

    batch(file, out)

    ids = reference_ids(served, line.request)
    (record,) = records(out)
    body = record["response"].pop("body")
    assert abs(body.pop("created") - out.stat().st_mtime) < 60
    assert record == {
        "id": f"batch_req_{line.digest}",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": line.job_id(0)},
        "error": None,
    }
    assert body == {
        "id": f"cmpl-{line.digest}",
        "object": "text_completion",
        "model": "base",
        "system_fingerprint": served.card.fingerprint,
        "choices": [
            {
                "index": 0,
                "text": served.tokenizer.decode(ids),
                "finish_reason": "length",
                "logprobs": None,
                "token_ids": ids,
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
        "seed": line.seed,
    }


def test_a_stop_text_cuts_what_the_model_would_have_said_without_it(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    (line,) = good_lines(write_lines(file, openai("a", seed=1, max_tokens=40)), model_of(served))
    whole = served.tokenizer.decode(reference_ids(served, line.request))
    stop = whole[30:33]
    write_lines(file, openai("a", seed=1, max_tokens=40, stop=stop))

    batch(file, out)

    (choice,) = records(out)[0]["response"]["body"]["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")


def test_bad_lines_cost_the_good_ones_nothing(
    file: Path, out: Path, errors: Path, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    write_lines(file, "{", own("a"), own("b", top_k=0), "", own("c"), own("a"), b"\xff")

    result = batch(file, out)

    assert result.exit_code == 1
    assert sorted(custom_ids(out)) == ["a", "c"]
    assert [(record["line"], record["custom_id"]) for record in records(errors)] == [
        (1, None),
        (3, "b"),
        (6, "a"),
        (7, None),
    ]
    assert all(record["error"]["code"] == "refused" for record in records(errors))
    assert "2 answered, 4 not: see out.errors.jsonl; " in result.stderr


def test_a_second_run_submits_nothing(
    server: redis.Redis, file: Path, out: Path, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    write_lines(file, *(own(f"{n}", temperature=0.8) for n in range(10)))
    batch(file, out)
    first = out.read_bytes()
    server.flushdb()

    result = batch(file, out)

    assert result.exit_code == 0
    assert out.read_bytes() == first
    assert server.keys("rq:job:*") == []
    assert "10 answered (10 earlier); 0 tokens in " in result.stderr


def test_a_line_that_changed_is_done_again_and_no_other(
    file: Path, out: Path, tmp_path: Path, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    write_lines(file, own("a"), own("b"))
    batch(file, out)
    write_lines(file, own("a"), own("b", max_new_tokens=3))

    batch(file, out)

    assert worker.done == 3
    assert custom_ids(out) == ["a", "b"]
    assert records(out)[1]["tokens"] == 3
    assert custom_ids(tmp_path / "out.replaced.jsonl") == ["b"]


def test_standard_input_is_read_where_a_dash_stands(out: Path, start_worker: Callable[..., Worker]) -> None:
    start_worker()

    result = client("batch", "-", "--output", str(out), stdin='{"custom_id": "a", "ids": [5, 6]}\n')

    assert (result.exit_code, custom_ids(out)) == (0, ["a"])


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
    assert [ids_of(record) for record in records(out)] == [[101, 102]]
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


def test_the_answer_of_an_earlier_model_of_the_name_does_not_count(
    server: redis.Redis, file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    (line,) = good_lines(write_lines(file, own("a")), model_of(served))
    old = answer_earlier(server, line)
    server.hset(Job.key_for(old), keys.FINGERPRINT_FIELD, "an earlier model")
    worker = start_worker()
    wait_until(lambda: server.exists(keys.model_card(keys.DEFAULT_MODEL)))

    assert batch(file, out).exit_code == 0

    assert worker.done == 1
    assert records(out)[0]["job_id"] == line.job_id(1)


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

    assert ": minilab-worker --model ./other --name other, where ./other is its folder" in capsys.readouterr().err


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
