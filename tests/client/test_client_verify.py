"""``minilab-client verify`` with a real worker: what is equal is called so, and what is not is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis
from click.testing import Result
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from rq.job import Job
from support.client_process import Program
from support.client_program import client, end, events, queued, run, start, submit
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.jobs import fetch, recorded_state
from minilab_gen.protocol.streams import publish, published_tokens, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.verification import AT_ONCE, MARK, verify
from minilab_gen.request import GenerationRequest, SamplingSettings

StartWorker = Callable[..., Worker]

REQUEST = GenerationRequest((5, 6, 7), 40, SamplingSettings(temperature=0.8, seed=11))


@pytest.fixture
def job(server: redis.Redis, start_worker: StartWorker) -> str:
    """A finished job, and a worker that can compute it again."""
    start_worker()
    (job_id,) = finished(server, [REQUEST])
    return job_id


def finished(server: redis.Redis, requests: Sequence[GenerationRequest]) -> list[str]:
    """Jobs that a worker has run."""
    job_ids = [enqueue(server, request, Submission()) for request in requests]
    for job_id in job_ids:
        wait_until(lambda job_id=job_id: recorded_state(fetch(server, job_id)) == "finished")  # type: ignore[misc]
    return job_ids


def rewrite(server: redis.Redis, job_id: str, stream: Sequence[Event]) -> None:
    """Put another stream in the place of a job's own."""
    server.delete(keys.token_stream(job_id))
    publish(server, [(job_id, event) for event in stream], running_ttl=600)


def alter(server: redis.Redis, job_id: str, number: int, **changes: Any) -> TokenEvent:
    """Change one token of an ended job by hand; what it was before."""
    stream = read_stream(server, job_id)
    before = stream[number - 1]
    assert isinstance(before, TokenEvent)
    stream[number - 1] = replace(before, **changes)
    rewrite(server, job_id, stream)
    return before


Books = dict[str, object]


def books(server: redis.Redis) -> Books:
    """All keys but those in which workers tell of themselves, with the members of RQ's lists, sets and registries."""
    of_workers = ("rq:worker", "minilab:worker:", "minilab:stats:")
    found = {key.decode() for key in server.scan_iter(count=1000)}
    return {key: members(server, key) for key in found if not key.startswith(of_workers)}


def members(server: redis.Redis, key: str) -> object:
    kind = server.type(key)
    if kind == b"zset":
        return sorted(server.zrange(key, 0, -1))
    if kind == b"set":
        return server.smembers(key)
    return server.lrange(key, 0, -1) if kind == b"list" else kind


def nothing_is_left(server: redis.Redis) -> bool:
    return MARK not in repr(books(server))


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


def test_after_verifications_of_every_outcome_redis_holds_what_it_held_before(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    requests = [GenerationRequest((5, 6, 7), 10), GenerationRequest((5, 6), 10)]
    start_worker()
    equal, other = finished(server, requests)
    (damaged,) = finished(server, [REQUEST])
    enqueue(server, REQUEST, Submission(job_id="low", priority="low"))  # so that RQ knows the queue of verifications
    enqueue(server, GenerationRequest((5, 1_000_000), 3), Submission(job_id="refused"))
    for job_id in ("low", "refused"):
        wait_until(lambda job_id=job_id: recorded_state(fetch(server, job_id)) in ("finished", "failed"))  # type: ignore[misc]
    rewrite(server, "refused", [TokenEvent(1, 7, "a"), EndEvent("length", 1, 2)])
    alter(server, other, 3, token_id=12)
    server.xdel(keys.token_stream(damaged), "17-0")
    before = books(server)

    result = client("verify", equal, other, damaged, "refused", "low")

    assert result.exit_code == 1
    assert [line.split("  ")[1].split(":")[0] for line in result.stdout.splitlines()] == [
        "equal", "token 3 differs", "the stream has a gap", "it could not be computed again", "equal",
    ]  # fmt: skip
    assert books(server) == before


def test_an_interrupt_leaves_redis_as_it_was(server: redis.Redis, server_url: str) -> None:
    for number in range(3):
        run(server, f"j{number}", ["a"])
    submit(server, "waits")
    enqueue(server, REQUEST, Submission(job_id="low", priority="low"))
    before = books(server)

    with Program(server_url, "verify", "--last", "3") as verification:
        wait_until(lambda: server.llen("rq:queue:minilab.base.low") == 4)
        verification.interrupt()
        code, _ = verification.ended()

    assert code == 130
    assert books(server) == before


def test_an_interrupt_just_after_a_verification_is_queued_leaves_nothing_behind(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server, "x", ["a"])

    def enqueue_and_press(*arguments: Any) -> str:
        enqueue(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("minilab_gen.protocol.verification.enqueue", enqueue_and_press)
    with pytest.raises(KeyboardInterrupt):
        list(verify(server, ["x"], "low"))

    assert nothing_is_left(server)


def test_what_a_killed_client_leaves_has_a_time_to_live(
    server: redis.Redis, server_url: str, start_worker: StartWorker
) -> None:
    run(server, "x", ["a"])
    with Program(server_url, "verify", "x") as verification:
        wait_until(lambda: server.llen("rq:queue:minilab.base.low") == 1)
        verification.process.kill()
        verification.ended()
    (own_id,) = queued(server, "low")

    start_worker()

    wait_until(lambda: recorded_state(fetch(server, own_id)) == "finished")
    left = server.keys(f"*{own_id}*")
    assert len(left) >= 3, "of the job there are its record, its tokens and its result"
    assert all(0 < server.ttl(key) <= keys.RETENTION for key in left)


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


def test_few_jobs_are_computed_at_a_time(server: redis.Redis) -> None:
    job_ids = [f"j{n}" for n in range(AT_ONCE + 10)]
    for job_id in job_ids:
        run(server, job_id, ["a"])
    waiting = []

    def give_up(_: object) -> None:
        waiting.append(server.llen("rq:queue:minilab.base.low"))
        raise TimeoutError

    with pytest.raises(TimeoutError):
        next(verify(server, job_ids, "low", give_up))

    assert waiting == [AT_ONCE]
    assert nothing_is_left(server)


def test_stopping_in_the_middle_leaves_nothing_in_redis(
    server: redis.Redis, start_worker: StartWorker, job: str
) -> None:
    job_ids = finished(server, [REQUEST] * 20)
    outcomes = verify(server, job_ids, "low")
    next(outcomes)

    outcomes.close()

    assert nothing_is_left(server)


def test_a_verification_that_no_worker_takes_leaves_nothing_behind(server: redis.Redis) -> None:
    run(server, "x", ["a"])

    def press(_: object) -> None:
        assert server.llen("rq:queue:minilab.base.low") == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(verify(server, ["x"], "low", press))

    assert nothing_is_left(server)


@pytest.mark.parametrize("arguments", [(), ("x", "--last", "3"), ("x", "--model", "base"), ("--last", "0")])
def test_what_is_not_clear_is_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    assert client("verify", *arguments).exit_code == 2
