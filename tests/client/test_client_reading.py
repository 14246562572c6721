"""What ``minilab-client`` shows of jobs and models: status, result, cancel, lists. No server is needed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import redis
from minilab_client.follow import WaitingNotes
from support.client_program import (
    announce_worker,
    client,
    end,
    events,
    fake_redis,
    overdue,
    queued,
    run,
    start,
    submit,
    write,
)

from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, publish_card
from minilab_gen.protocol.events import JobState
from minilab_gen.protocol.jobs import JobView
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest, SamplingSettings
from minilab_gen.text.tokenizer import get_tokenizer

TEXTS = (" é", "", "tait\n", " là")
JOB_COMMANDS = ("tail", "status", "result", "cancel", "retry", "verify")


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


@pytest.mark.parametrize("command", JOB_COMMANDS)
def test_an_unknown_job_has_an_exit_code_of_its_own(command: str) -> None:
    result = client(command, "nope")

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: unknown or expired job: nope; `minilab-client jobs` lists what is there\n"


@pytest.mark.parametrize("command", JOB_COMMANDS)
@pytest.mark.parametrize("job_id", ["a:b", "a b", "ü", ""])
def test_a_bad_job_id_is_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, command: str, job_id: str
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    result = client(command, job_id)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "a job id must be 1 to 128 letters" in result.stderr


# waiting

QUEUED = JobView("x", "queued", "base", 0, None, position=2, worker=None, workers_alive=1, error=None)


def test_a_wait_is_told_once_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    notes = WaitingNotes()
    running = replace(QUEUED, state="started", position=None)
    lost = replace(running, workers_alive=0)

    for view in (QUEUED, QUEUED, replace(QUEUED, position=0), running, running, lost, lost, running, lost):
        notes(view)

    queue, following, gone, gone_again = capsys.readouterr().err.splitlines()
    assert queue == "waiting: 2 jobs stand before it in the queue"
    assert following == "waiting: it is the next in the queue"
    assert gone == gone_again
    assert gone.startswith("waiting: its worker is gone")


def test_a_wait_without_a_worker_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    WaitingNotes()(replace(QUEUED, workers_alive=0))

    assert capsys.readouterr().err.endswith("serves the model base; start one in another terminal: minilab-worker\n")


@pytest.mark.parametrize("state", ["queued", "started"])
def test_what_to_start_is_never_the_shipped_model_under_the_name_of_another(
    capsys: pytest.CaptureFixture[str], state: JobState
) -> None:
    WaitingNotes()(replace(QUEUED, workers_alive=0, model="other", state=state))

    assert (
        ": minilab-worker --model ./other --name other, where ./other is its folder or GGUF file"
        in capsys.readouterr().err
    )


# status


def test_status_of_a_waiting_job_tells_its_place_and_that_no_worker_is_there(connection: redis.Redis) -> None:
    submit(connection, "first")
    submit(connection, "x")

    seen = json.loads(client("status", "x", "--json").stdout)

    assert (seen["state"], seen["position"], seen["workers_alive"], seen["end"]) == ("queued", 1, 0, None)
    assert "no worker serves the model base" in client("status", "x").stdout


def test_status_tells_the_settings_that_were_asked(connection: redis.Redis) -> None:
    settings = SamplingSettings(
        0.8, seed=7, logit_bias={12: -5}, allowed_token_ids=tuple(range(20)), presence_penalty=-1
    )
    enqueue(connection, GenerationRequest((5, 12, 7), 9, settings, (3,)), Submission(job_id="x"))
    submit(connection, "plain")

    assert (
        'settings max_new_tokens 9, temperature 0.8, seed 7, presence_penalty -1, logit_bias {"12": -5.0}, '
        "allowed_token_ids of 20, stop_ids [3]\n"
    ) in client("status", "x").stdout
    assert "settings max_new_tokens 64\n" in client("status", "plain").stdout
    stops = GenerationRequest((5,), 9, SamplingSettings(0.8), (3,), ("é",), include_stop=True)
    enqueue(connection, stops, Submission(job_id="stops"))
    end = 'temperature 0.8, seed 0, stop_ids [3], stop ["é"], include_stop true\n'
    assert f"settings max_new_tokens 9, {end}" in client("status", "stops").stdout
    seen = json.loads(client("status", "x", "--json").stdout)["settings"]
    assert (seen["temperature"], seen["logit_bias"], seen["top_k"]) == (0.8, {"12": -5.0}, None)


def test_status_of_a_job_with_a_damaged_request_tells_what_else_is_known(connection: redis.Redis) -> None:
    submit(connection, "x")
    connection.hset("rq:job:x", "data", b"broken")

    result = client("status", "x")

    assert result.exit_code == 0
    assert "settings" not in result.stdout


def test_status_of_a_job_whose_worker_is_gone_says_so(connection: redis.Redis) -> None:
    announce_worker(connection, alive=False)
    submit(connection, "x")
    start(connection, "x")
    write(connection, "x", "a", "b")

    result = client("status", "x")

    assert result.exit_code == 0
    assert "its worker is gone" in result.stdout
    assert "tokens   2" in result.stdout


def test_status_of_an_ended_job_is_no_failure_and_tells_the_end(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS, "error", error="it\x1b[2J broke")

    result = client("status", "x")

    assert result.exit_code == 0
    assert "state    failed" in result.stdout
    seen = json.loads(client("status", "x", "--json").stdout)
    assert (seen["end"], seen["error"], seen["tokens"], seen["prompt_tokens"]) == (
        "error",
        "it\x1b[2J broke",
        4,
        3,
    )


def test_status_of_a_job_that_waited_too_long_is_failed(connection: redis.Redis) -> None:
    overdue(connection, "x")

    seen = json.loads(client("status", "x", "--json").stdout)

    assert (seen["state"], seen["end"], seen["phase"]) == ("failed", "timeout", "waiting")


# result


def test_the_result_is_what_tail_prints(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)

    assert client("result", "x").stdout == client("tail", "x").stdout


def test_the_result_as_ids_is_what_submit_takes(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)

    ids = client("result", "x", "--format", "ids").stdout

    assert ids == "101,102,103,104\n"
    assert client("submit", "--ids", ids.strip()).exit_code == 0


@pytest.mark.parametrize("flags", [("--json",), ("--format", "json")])
def test_the_result_as_json_has_ids_text_seed_and_end(connection: redis.Redis, flags: tuple[str, ...]) -> None:
    run(connection, "x", TEXTS)

    (seen,) = events(client("result", "x", *flags))

    assert (seen["ids"], seen["text"], seen["seed"], seen["end"]) == (
        [101, 102, 103, 104],
        " était\n là",
        0,
        "length",
    )


def test_a_job_that_has_not_ended_has_no_result_yet(connection: redis.Redis) -> None:
    submit(connection, "x")
    start(connection, "x")
    write(connection, "x", "a")

    result = client("result", "x")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "has not ended: it is started, with 1 tokens so far; --wait" in result.stderr


def test_the_result_can_be_waited_for(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(connection, "x")

    def say_and_answer(_: str) -> None:
        start(connection, "x")
        write(connection, "x", "a", "b")
        end(connection, "x", 2)

    monkeypatch.setattr("minilab_client.follow.say", say_and_answer)

    result = client("result", "x", "--wait")

    assert (result.exit_code, result.stdout) == (0, "ab\n")


# cancel


def test_a_waiting_job_is_cancelled_at_once(connection: redis.Redis) -> None:
    submit(connection, "x")

    result = client("cancel", "x")

    assert (result.exit_code, result.stdout) == (0, "x  was queued, now cancelled\n")
    assert queued(connection) == []
    assert client("tail", "x").exit_code == 5


def test_a_running_job_is_told_to_stop_and_not_called_cancelled(connection: redis.Redis) -> None:
    submit(connection, "x")
    start(connection, "x")

    result = client("cancel", "x", "--json")

    assert events(result) == [{"job_id": "x", "was": "started", "state": "started"}]
    assert connection.exists(keys.cancel_flag("x"))


def test_cancelling_an_ended_job_changes_nothing_and_is_no_error(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)

    result = client("cancel", "x")

    assert (result.exit_code, result.stdout) == (0, "x  had already ended: finished\n")
    assert client("tail", "x").exit_code == 0


def test_the_others_are_cancelled_beside_an_unknown_job(connection: redis.Redis) -> None:
    submit(connection, "x")

    result = client("cancel", "nope", "x")

    assert (result.exit_code, result.stdout) == (3, "x  was queued, now cancelled\n")
    assert "unknown or expired job: nope" in result.stderr


# lists


@pytest.mark.parametrize("command", ["jobs", "models", "workers"])
def test_an_empty_list_is_an_empty_array_and_a_word_to_people(command: str) -> None:
    assert client(command, "--json").stdout == "[]\n"
    result = client(command)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("no ")


# models


def test_models_are_listed_with_their_workers(connection: redis.Redis) -> None:
    card = ModelCard("other", 64, 2048, (0,), "f" * 16, "exact", "t" * 32)
    publish_card(connection, card, get_tokenizer().to_json())

    (listed,) = json.loads(client("models", "--json").stdout)

    assert (listed["name"], listed["context_length"], listed["workers_alive"]) == ("other", 64, 0)
    assert client("models").stdout.splitlines()[1].split() == ["other", "64", "2048", "no", "0", "f" * 16, "exact"]
