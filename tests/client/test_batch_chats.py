"""Chats in a batch whose template writes today's date: the line stays the same, and so does the prompt of its job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import redis
from click.testing import Result
from support.batch_files import asked_model, good_lines, records, write_lines
from support.client_program import client, end, fake_redis, queued, start, write

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.line import Line
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest
from minilab_gen.text.chat import ChatFormat

TEMPLATE = "Today is {{ strftime_now('%d %B %Y') }}. {{ messages[-1].content }}"
FIRST, LATER = "AAA12", "BBB-14"
"""Two time zones, in POSIX's words, that are 26 hours apart: at any moment their dates differ."""

LINES: list[dict[str, Any]] = [
    {"custom_id": "greedy", "chat": "Phileas Fogg"},
    {"custom_id": "sampled", "chat": [{"role": "user", "content": "Passepartout"}], "temperature": 0.8},
]

SetZone = Callable[[str], None]


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetZone]:
    """Move this process into another time zone."""

    def set_zone(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_zone
    monkeypatch.delenv("TZ", raising=False)
    time.tzset()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", *LINES)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, in which a model that chats is announced."""
    fake = fake_redis(monkeypatch)
    model = chatting()
    publish_card(fake, model.card, model.tokenizer.to_json())
    return fake


def chatting(template: str = TEMPLATE) -> AskedModel:
    base = asked_model()
    return AskedModel(replace(base.card, chat=ChatFormat(template)), base.tokenizer)


def batch(connection: redis.Redis, file: Path, out: Path) -> tuple[Result, list[str]]:
    """Run the program beside a worker; what came of it, and the jobs that the worker was given."""
    given: list[str] = []
    is_over = Event()

    def work() -> None:
        while not is_over.wait(0.01):
            for job_id in queued(connection, "low"):
                given.append(job_id)
                answer(connection, job_id)

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        try:
            result = client("batch", str(file), "--output", str(out))
        finally:
            is_over.set()
        worker.result()
    assert result.exit_code == 0
    return result, given


def put(connection: redis.Redis, line: Line, job_id: str | None = None) -> str:
    """A line's job as an earlier run left it in the queue."""
    return enqueue(connection, line.request, Submission(job_id=job_id or line.job_id(0), priority="low"))


def answer(connection: redis.Redis, job_id: str) -> None:
    """What a worker does with a job."""
    start(connection, job_id)
    write(connection, job_id, "a", "b")
    end(connection, job_id, 2)


def prompts(lines: list[Line]) -> list[tuple[int, ...]]:
    return [line.request.prompt for line in lines]


def asked(connection: redis.Redis, job_id: str) -> GenerationRequest:
    return request_of(fetch(connection, job_id))


def test_another_date_makes_another_prompt_and_no_other_line(file: Path, set_zone: SetZone) -> None:
    set_zone(FIRST)
    lines = good_lines(file, chatting())
    set_zone(LATER)
    later = good_lines(file, chatting())

    assert all(one != other for one, other in zip(prompts(lines), prompts(later), strict=True))
    assert [(line.digest, line.seed) for line in later] == [(line.digest, line.seed) for line in lines]


def test_the_same_words_to_another_tokenizer_with_other_settings_or_without_a_chat_are_another_line(file: Path) -> None:
    (line, _) = good_lines(file, chatting())
    model = chatting()
    other_card = AskedModel(replace(model.card, tokenizer="another"), model.tokenizer)
    others = [
        good_lines(write_lines(file, fields), chatting())[0]
        for fields in (
            {"custom_id": "greedy", "chat": "Phileas"},
            {"custom_id": "greedy", "chat": [{"role": "system", "content": "x"}, *_said("Phileas Fogg")]},
            {"custom_id": "greedy", "chat": "Phileas Fogg", "max_new_tokens": 5},
            {"custom_id": "greedy", "chat": "Phileas Fogg", "stop_ids": [5]},
            {"custom_id": "greedy", "ids": list(line.request.prompt), "max_new_tokens": 1024},
        )
    ]
    others += good_lines(write_lines(file, LINES[0]), other_card)

    assert len({line.digest, *(other.digest for other in others)}) == 7
    (same,) = good_lines(write_lines(file, {"custom_id": "greedy", "chat": _said("Phileas Fogg")}), chatting())
    assert same.digest == line.digest


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_what_was_answered_yesterday_is_not_computed_again(
    fake: redis.Redis, file: Path, out: Path, set_zone: SetZone
) -> None:
    set_zone(FIRST)
    for line in good_lines(file, chatting()):
        answer(fake, put(fake, line))
    batch(fake, file, out)
    before = out.read_bytes()

    set_zone(LATER)
    fake.flushall()
    publish_card(fake, chatting().card, chatting().tokenizer.to_json())
    result, given = batch(fake, file, out)

    assert (given, out.read_bytes()) == ([], before)
    assert "2 answered (2 earlier)" in result.stderr


def test_jobs_that_were_submitted_yesterday_are_found_and_keep_their_date(
    fake: redis.Redis, file: Path, out: Path, set_zone: SetZone
) -> None:
    set_zone(FIRST)
    lines = good_lines(file, chatting())
    for line in lines:
        answer(fake, put(fake, line))

    set_zone(LATER)
    _, given = batch(fake, file, out)

    assert given == []
    assert sorted(record["job_id"] for record in records(out)) == sorted(line.job_id(0) for line in lines)
    assert [asked(fake, line.job_id(0)).prompt for line in lines] == prompts(lines)


def test_a_job_that_failed_yesterday_is_tried_again_with_the_date_of_yesterday(
    fake: redis.Redis, file: Path, out: Path, set_zone: SetZone
) -> None:
    set_zone(FIRST)
    (line,) = good_lines(write_lines(file, LINES[1]), chatting())
    start(fake, put(fake, line))
    end(fake, line.job_id(0), 0, "error", error="x")

    set_zone(LATER)
    _, given = batch(fake, file, out)

    assert given == [line.job_id(1)]
    assert asked(fake, line.job_id(1)) == line.request


def earlier_release(connection: redis.Redis, file: Path, out: Path) -> Line:
    """An output whose one answer names its job by the digest of the rendered prompt."""
    (line,) = good_lines(write_lines(file, LINES[0]), chatting())
    answer(connection, put(connection, line))
    batch(connection, file, out)
    assert line.rendered_digest is not None
    out.write_text(out.read_text().replace(line.digest, line.rendered_digest))
    connection.delete(f"rq:job:{line.job_id(0)}", f"minilab:tokens:{line.job_id(0)}", f"rq:results:{line.job_id(0)}")
    return line


def test_an_answer_that_an_earlier_release_has_written_counts_while_its_prompt_is_the_same(
    fake: redis.Redis, file: Path, out: Path, set_zone: SetZone
) -> None:
    set_zone(FIRST)
    earlier_release(fake, file, out)
    before = out.read_bytes()

    _, given = batch(fake, file, out)

    assert (given, out.read_bytes()) == ([], before)


def test_one_with_another_date_is_done_again_once_and_moved(
    fake: redis.Redis, file: Path, out: Path, set_zone: SetZone
) -> None:
    set_zone(FIRST)
    line = earlier_release(fake, file, out)
    old = records(out)

    set_zone(LATER)
    _, given = batch(fake, file, out)

    assert given == [record["job_id"] for record in records(out)] == [line.job_id(0)]
    assert records(out.with_name("out.replaced.jsonl")) == old


def test_a_retry_on_another_day_has_the_prompt_of_the_first_day(fake: redis.Redis, set_zone: SetZone) -> None:
    set_zone(FIRST)
    job_id = client("submit", "--chat", "Phileas Fogg").stdout.strip()
    answer(fake, job_id)

    set_zone(LATER)
    again = client("retry", job_id).stdout.strip()

    assert asked(fake, again) == asked(fake, job_id)
    assert asked(fake, again) != asked(fake, client("submit", "--chat", "Phileas Fogg").stdout.strip())
