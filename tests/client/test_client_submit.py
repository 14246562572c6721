"""``minilab-client submit``: what it takes, what reaches the queue, what it prints. No server is needed."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import redis
from minilab_client.chat import chat
from minilab_client.submit import submit
from support.client_program import announce_worker, client, end, events, fake_redis, queued, start, write

from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.request import GIVEN_FIELDS, SamplingSettings


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, with a worker for what is submitted."""
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


@pytest.fixture
def unserved(connection: redis.Redis) -> redis.Redis:
    """The same without a worker."""
    connection.delete(keys.worker_lease("minilab-test"))
    return connection


def prompt_of(connection: redis.Redis, job_id: str) -> tuple[int, ...]:
    return request_of(fetch(connection, job_id)).prompt


def test_submit_prints_the_job_id_alone(connection: redis.Redis) -> None:
    result = client("submit", "Phileas Fogg")

    assert (result.exit_code, result.stderr) == (0, "")
    assert queued(connection) == [result.stdout.rstrip("\n")]


def test_a_text_reaches_the_queue_as_ids(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "x", "--max-new-tokens", "9", "--stop-id", "3", "--stop-id", "4")

    request = request_of(fetch(connection, "x"))
    assert (len(request.prompt), request.max_new_tokens, request.stop_ids) == (2, 9, (3, 4))


def test_stop_texts_and_stop_ids_are_told_apart(connection: redis.Redis) -> None:
    client("submit", "Phileas", "--stop", "5", "--stop", "\n", "--stop-id", "6", "--include-stop", "--job-id", "x")

    request = request_of(fetch(connection, "x"))
    assert (request.stop, request.stop_ids, request.include_stop) == (("5", "\n"), (6,), True)


@pytest.mark.parametrize("prompt", [["Phileas Fogg"], ["--ids", "5,12"]])
def test_a_stop_text_that_names_a_special_token_is_a_stop_id_too(connection: redis.Redis, prompt: list[str]) -> None:
    client("submit", *prompt, "--stop", "<|im_end|>", "--stop", ",", "--job-id", "x")

    request = request_of(fetch(connection, "x"))
    assert (request.stop, request.stop_ids) == (("<|im_end|>", ","), (0, 2))


@pytest.mark.parametrize(("command", "without"), [(submit, set()), (chat, {"logprobs", "prompt_logprobs"})])
def test_every_setting_of_a_request_has_an_option_of_its_name(command: click.Command, without: set[str]) -> None:
    named = {*GIVEN_FIELDS, "json_schema", "json_object"} - {"response_format"}
    assert {option.name for option in command.params} >= named - without


def test_all_settings_reach_the_queue(connection: redis.Redis) -> None:
    options = "--min-p 0.1 --repetition-penalty 1.2 --presence-penalty 0.5 --frequency-penalty -0.5 --min-tokens 3"
    lists = "--allowed-token-ids 7,12,13 --bad-word Fogg --bad-word-ids 5,6 --bad-word-ids 9 --ignore-eos"
    biases = ["--logit-bias", '{"12": -5, "9": 0}', "--logit-bias", "7=2.5"]

    result = client("submit", "Phileas Fogg", "--job-id", "x", *options.split(), *lists.split(), *biases)

    assert (result.exit_code, result.stderr) == (0, "")
    request = request_of(fetch(connection, "x"))
    words = ((5, 6), (9,), (40, 351), (352,))
    settings = SamplingSettings(0, None, None, 0, 0.1, 1.2, 0.5, -0.5, {7: 2.5, 9: 0, 12: -5}, 3, (7, 12, 13), words)
    assert (request.settings, request.stop_ids) == (settings, ())


def test_ignoring_the_models_ends_keeps_those_that_are_named(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "x", "--ignore-eos", "--stop-id", "5")

    assert request_of(fetch(connection, "x")).stop_ids == (5,)


def test_a_setting_of_zero_is_given(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILAB_PRESENCE_PENALTY", "1")

    client("submit", "Phileas Fogg", "--job-id", "x", "--presence-penalty", "0")
    client("submit", "Phileas Fogg", "--job-id", "y")

    assert request_of(fetch(connection, "x")).settings.presence_penalty == 0
    assert request_of(fetch(connection, "y")).settings.presence_penalty == 1


def test_ids_reach_the_queue_as_they_are(connection: redis.Redis) -> None:
    client("submit", "--ids", "5,12,7", "--job-id", "x")

    assert request_of(fetch(connection, "x")).prompt == (5, 12, 7)


def test_a_dash_reads_standard_input_without_its_last_line_end(connection: redis.Redis) -> None:
    client("submit", "Phileas\nFogg", "--job-id", "typed")
    client("submit", "-", "--job-id", "piped", stdin="Phileas\nFogg\n")

    assert request_of(fetch(connection, "piped")).prompt == request_of(fetch(connection, "typed")).prompt


def test_a_priority_chooses_the_queue(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--priority", "high", "--job-id", "x")

    assert queued(connection, "high") == ["x"]


def test_timeout_and_ttl_reach_the_job(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "x", "--timeout", "7", "--ttl", "1000")

    job = fetch(connection, "x")
    assert job.timeout == 7
    assert "expires_at" in job.meta


def test_settings_come_from_variables_where_no_flag_is_given(connection: redis.Redis) -> None:
    variables = {"MINILAB_TEMPERATURE": "0.5", "MINILAB_SEED": "4", "MINILAB_MAX_NEW_TOKENS": "3"}

    client("submit", "Phileas Fogg", "--job-id", "x", "--seed", "9", **variables)

    request = request_of(fetch(connection, "x"))
    assert (request.settings.temperature, request.settings.seed, request.max_new_tokens) == (0.5, 9, 3)


def test_a_sampled_job_without_a_seed_draws_one_keeps_it_and_reports_it(connection: redis.Redis) -> None:
    result = client("submit", "Phileas Fogg", "--temperature", "0.8", "--job-id", "x")

    seed = request_of(fetch(connection, "x")).settings.seed
    assert (result.stdout, result.stderr) == ("x\n", f"seed {seed}\n")


@pytest.mark.parametrize(
    ("arguments", "seed"),
    [((), None), (("--seed", "0"), 0), (("--temperature", "1", "--seed", "0"), 0), (("--temperature", "1"), "drawn")],
)
def test_json_names_the_seed_where_it_was_given_or_drawn(
    connection: redis.Redis, arguments: tuple[str, ...], seed: int | str | None
) -> None:
    result = client("submit", "Phileas Fogg", "--json", "--job-id", "x", *arguments)

    kept = request_of(fetch(connection, "x")).settings.seed
    expected = kept if seed == "drawn" else seed
    assert events(result) == [{"event": "submitted", "job_id": "x", "model": "base", "seed": expected}]
    assert result.stderr == ""


def test_what_comes_through_a_pipe_is_the_text_where_nothing_else_is_given(connection: redis.Redis) -> None:
    client("submit", "Phileas\nFogg", "--job-id", "typed")
    client("submit", "--job-id", "piped", stdin="Phileas\nFogg\n")

    assert prompt_of(connection, "piped") == prompt_of(connection, "typed")


def test_a_text_that_is_given_leaves_standard_input_alone(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "typed")
    client("submit", "Phileas Fogg", "--job-id", "both", stdin="Le capitaine Nemo")

    assert prompt_of(connection, "both") == prompt_of(connection, "typed")


def test_a_file_holds_the_text(connection: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Phileas\nFogg\n", encoding="utf-8-sig")

    client("submit", "Phileas\nFogg", "--job-id", "typed")
    client("submit", "-f", str(file), "--job-id", "filed", stdin="Le capitaine Nemo")

    assert prompt_of(connection, "filed") == prompt_of(connection, "typed")


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("priority", keys.PRIORITIES)
def test_that_no_worker_serves_the_model_is_said_and_the_job_queued(
    unserved: redis.Redis, options: list[str], priority: keys.Priority
) -> None:
    result = client("submit", "Phileas Fogg", "--job-id", "x", "--priority", priority, *options)

    assert (result.exit_code, queued(unserved, priority)) == (0, ["x"])
    assert result.stderr == (
        "waiting: no worker serves the model base; start one in another terminal: minilab-worker\n"
    )
    assert result.stdout.count("\n") == 1


def test_max_new_tokens_that_do_not_fit_are_said_to_be_cut(connection: redis.Redis) -> None:
    ids = ",".join(["5"] * 100)
    fitting = client("submit", "--ids", ids, "--max-new-tokens", "28")
    assert fitting.stderr == ""

    for given in (["--max-new-tokens", "29"], []):
        result = client("submit", "--ids", ids, *given)
        assert result.exit_code == 0
        rule = "the prompt's 100 tokens and the answer must fit the model's context of 128"
        assert result.stderr == (f"--max-new-tokens 29 is cut to 28: {rule}\n" if given else "")


def test_a_variable_counts_as_asked_for(connection: redis.Redis) -> None:
    result = client("submit", "--ids", "5", "--json", MINILAB_MAX_NEW_TOKENS="500")

    assert result.stderr.startswith("--max-new-tokens 500 is cut to 127: the prompt's 1 token and")
    assert [event["event"] for event in events(result)] == ["submitted"]


def test_follow_says_at_once_that_no_worker_is_there_and_then_shows_the_answer(
    unserved: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[str] = []

    def say_and_answer(message: str) -> None:
        waiting.append(message)
        answer(unserved, "x")

    monkeypatch.setattr("minilab_client.follow.say", say_and_answer)

    result = client("submit", "Phileas Fogg", "--job-id", "x", "--follow")

    assert (result.exit_code, result.stdout, result.stderr) == (0, " était\n", "job x\n")
    (reason,) = waiting
    assert reason.startswith("waiting: no worker serves the model base")
    assert reason.endswith("minilab-worker")


def test_follow_as_json_tells_the_submission_each_token_and_the_end(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minilab_client.follow.say", lambda _: answer(connection, "x"))

    result = client("submit", "Phileas Fogg", "--job-id", "x", "--follow", "--json")

    assert events(result) == [
        {"event": "submitted", "job_id": "x", "model": "base", "seed": None},
        {"event": "token", "n": 1, "id": 101, "text": " ét"},
        {"event": "token", "n": 2, "id": 102, "text": "ait"},
        {"event": "end", "end": "length", "tokens": 2, "prompt_tokens": 3},
    ]


def answer(connection: redis.Redis, job_id: str) -> None:
    """A worker that runs one job."""
    start(connection, job_id)
    write(connection, job_id, " ét", "ait")
    end(connection, job_id, 2)
