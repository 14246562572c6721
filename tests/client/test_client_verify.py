"""``minilab-client verify`` with a real worker: what is equal is called so, and what is not is named."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import redis
from click.testing import Result
from minilab_worker.serving import ServedModel
from rq.job import Job
from support.client_program import client, end, events, run, start, submit
from support.verification import REQUEST, StartWorker, alter, finished, nothing_is_left, rewrite
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import workers_alive
from minilab_gen.protocol.streams import publish, published_tokens, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.verification import MARK
from minilab_gen.request import GenerationRequest, SamplingSettings


@pytest.fixture
def job(server: redis.Redis, start_worker: StartWorker) -> str:
    """A finished job, and a worker that can compute it again."""
    start_worker()
    (job_id,) = finished(server, [REQUEST])
    return job_id


def message(result: Result) -> tuple[int, str]:
    """The exit code, and what was printed about the one job."""
    (line,) = result.stdout.splitlines()
    return result.exit_code, line.partition("  ")[2]


def test_100_finished_jobs_are_equal(server: redis.Redis, start_worker: StartWorker) -> None:
    dice = random.Random(7)
    requests = [
        GenerationRequest(
            tuple(dice.randrange(2048) for _ in range(dice.randint(1, 20))),
            dice.randint(1, 30),
            SamplingSettings(dice.choice([0.0, 0.8, 1.5]), seed=dice.randrange(1000)),
            (dice.randrange(2048),),
        )
        for _ in range(100)
    ]
    start_worker()
    job_ids = finished(server, requests)

    result = client("verify", "--last", "100")

    lines = result.stdout.splitlines()
    counts = {job_id: len(published_tokens(server, job_id)[0]) for job_id in job_ids}
    assert {line.partition("  ")[0]: line.partition("  ")[2] for line in lines} == {
        job_id: f"equal: {count} token{'' if count == 1 else 's'}" for job_id, count in counts.items()
    }
    assert (result.exit_code, len(lines)) == (0, 100)
    assert result.stderr.splitlines()[-1] == "100 of 100 jobs are equal"
    assert nothing_is_left(server)


def test_a_token_that_was_altered_is_named(server: redis.Redis, job: str) -> None:
    before = alter(server, job, 17, token_id=12, text=" le")

    result = client("verify", job)

    assert message(result) == (
        1,
        f"token 17 differs: stored 12 (' le'), recomputed {before.token_id} ({before.text!r})",
    )
    (shown,) = events(client("verify", job, "--json"))
    assert (shown["job_id"], shown["equal"], shown["tokens"], shown["token"]) == (job, False, 16, 17)
    assert shown["stored"] == {"number": 17, "token_id": 12, "text": " le"}
    assert shown["recomputed"]["token_id"] == before.token_id
    assert nothing_is_left(server)


def test_a_text_that_was_altered_is_named(server: redis.Redis, job: str) -> None:
    before = alter(server, job, 3, text="forged")

    assert message(client("verify", job)) == (
        1,
        f"the text of token 3 differs: stored 'forged', recomputed {before.text!r}",
    )


def test_tokens_that_were_cut_off_or_added_are_named(server: redis.Redis, job: str) -> None:
    *tokens, ended = read_stream(server, job)
    assert isinstance(ended, EndEvent)
    rewrite(server, job, [*tokens[:30], replace(ended, tokens=30)])
    assert message(client("verify", job))[1].startswith("token 31 differs: stored none, recomputed")

    rewrite(server, job, [*tokens, TokenEvent(41, 9, "x"), replace(ended, tokens=41)])

    assert message(client("verify", job)) == (1, "token 41 differs: stored 9 ('x'), recomputed none")


def test_another_end_is_named(server: redis.Redis, job: str) -> None:
    *tokens, ended = read_stream(server, job)
    assert isinstance(ended, EndEvent)
    rewrite(server, job, [*tokens, replace(ended, reason="context")])

    assert message(client("verify", job)) == (
        1,
        "the end differs in its reason: stored 'context', recomputed 'length'",
    )


def test_another_stop_text_is_named(server: redis.Redis, start_worker: StartWorker) -> None:
    start_worker()
    whole = "".join(event.text for event in read_stream(server, finished(server, [REQUEST])[0]))
    (job_id,) = finished(server, [replace(REQUEST, stop=(whole[20:23],))])
    *tokens, ended = read_stream(server, job_id)
    assert isinstance(ended, EndEvent)
    rewrite(server, job_id, [*tokens, replace(ended, stop_text="forged")])

    assert message(client("verify", job_id)) == (
        1,
        f"the end differs in its stop_text: stored 'forged', recomputed {ended.stop_text!r}",
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (("17-0",), "the stream has a gap: token 17 is missing"),
        (("41-0",), "the stream has a gap: the end after token 40 is missing"),
    ],
)
def test_an_entry_that_was_removed_is_named(
    server: redis.Redis, job: str, entries: tuple[str, ...], words: str
) -> None:
    server.xdel(keys.token_stream(job), *entries)

    assert message(client("verify", job)) == (1, words)


def test_a_job_that_another_model_made_is_not_compared(server: redis.Redis, job: str, served: ServedModel) -> None:
    server.hset(Job.key_for(job), keys.FINGERPRINT_FIELD, "e" * 32)

    code, words = message(client("verify", job))

    assert code == 1
    assert words.startswith(f"made by the model {'e' * 32}, computed again by {served.card.fingerprint}")


def test_a_job_of_an_ordinary_rq_worker_which_names_no_model_is_compared(server: redis.Redis, job: str) -> None:
    server.hdel(Job.key_for(job), keys.FINGERPRINT_FIELD)

    assert message(client("verify", job)) == (0, "equal: 40 tokens")


@pytest.mark.parametrize("reason", ["cancelled", "timeout", "error"])
def test_of_a_job_that_was_stopped_the_tokens_that_it_has_are_compared(
    server: redis.Redis, job: str, reason: Any
) -> None:
    tokens = read_stream(server, job)[:7]
    rewrite(server, job, [*tokens, EndEvent(reason, 7, 3)])
    assert message(client("verify", job)) == (0, f"equal: 7 tokens, as far as it came ({reason})")

    alter(server, job, 7, token_id=12)

    code, words = message(client("verify", job))
    assert (code, words.startswith("token 7 differs: stored 12")) == (1, True)


def test_a_job_with_settings_that_count_is_verified_also_where_it_was_stopped(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    start_worker()
    settings = SamplingSettings(0.8, seed=3, repetition_penalty=1.3, frequency_penalty=0.5, min_p=0.02, min_tokens=30)
    (job_id,) = finished(server, [GenerationRequest((5, 6, 7), 40, settings, stop_ids=(14,))])
    assert message(client("verify", job_id))[0] == 0

    rewrite(server, job_id, [*read_stream(server, job_id)[:7], EndEvent("cancelled", 7, 3)])

    assert message(client("verify", job_id)) == (0, "equal: 7 tokens, as far as it came (cancelled)")


def test_a_job_that_ended_without_a_token_has_none_that_differs(server: redis.Redis) -> None:
    submit(server, "x")
    cancel(server, "x")

    assert message(client("verify", "x")) == (0, "equal: it ended without a token (cancelled)")


def test_the_others_are_verified_beside_one_that_cannot_be(server: redis.Redis, job: str) -> None:
    submit(server, "runs")
    start(server, "runs")

    result = client("verify", "nope", job, "runs")

    assert result.exit_code == 2
    assert result.stdout == f"{job}  equal: 40 tokens\n"
    unknown, running, summary = result.stderr.splitlines()
    assert "unknown or expired job: nope" in unknown
    assert "must have ended, but runs is started" in running
    assert summary == "1 of 3 jobs are equal"


def test_a_computation_that_fails_is_told(server: redis.Redis, start_worker: StartWorker) -> None:
    enqueue(server, GenerationRequest((5, 1_000_000), 3), Submission(job_id="x"))
    start(server, "x")
    publish(server, [("x", TokenEvent(1, 7, "a"))], running_ttl=600)
    end(server, "x", 1)
    start_worker()

    code, words = message(client("verify", "x"))

    assert code == 1
    assert words.startswith("it could not be computed again: prompt ids must be 0 to 2047, got 1000000")


def test_the_newest_finished_jobs_are_chosen_and_no_verification(server: redis.Redis, job: str) -> None:
    newer, newest = finished(server, [REQUEST, REQUEST])
    run(server, f"{MARK}of-another", ["a"])
    run(server, "failed", ["a"], "error")

    result = client("verify", "--last", "2")

    assert [line.split()[0] for line in result.stdout.splitlines()] == [newest, newer]
    assert client("verify", "--last", "5", "--model", "other").stderr == "no finished job to verify\n"


def test_the_newest_jobs_of_a_model_that_no_worker_serves_are_not_waited_for(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    worker = start_worker()
    finished(server, [REQUEST, replace(REQUEST, max_new_tokens=3)])
    worker.stop()
    wait_until(lambda: not workers_alive(server, keys.queue_name("base")))

    result = client("verify", "--last", "2")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "no worker serves the model base: 2 jobs are not verified; start one, or choose others with --model\n"
    )
    assert not server.exists(f"rq:queue:{keys.queue_name('base')}")


@pytest.mark.parametrize("arguments", [(), ("x", "--last", "3"), ("x", "--model", "base"), ("--last", "0")])
def test_what_is_not_clear_is_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    assert client("verify", *arguments).exit_code == 2
