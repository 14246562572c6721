"""Logprobs on the command line: asked for by ``submit``, shown as JSON and as a table, never in a text."""

from __future__ import annotations

import pytest
import redis
from support.client_program import announce_worker, client, end, events, fake_redis, refusal, start

from minilab_gen.logprobs import TokenLogprobs
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, publish_card
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.streams import publish

LISTED = (TokenLogprobs(-0.5, ((14, -0.5), (0, -2.25))), TokenLogprobs(-3.0, ((297, -0.125), (362, -3.0))))
SHOWN = [
    {"logprob": -0.5, "top_logprobs": [[14, -0.5], [0, -2.25]]},
    {"logprob": -3.0, "top_logprobs": [[297, -0.125], [362, -3.0]]},
]


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, with a worker for what is submitted."""
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


@pytest.fixture
def answered(connection: redis.Redis) -> redis.Redis:
    """Job x with two tokens and their logprobs, and those of its prompt."""
    client("submit", "Phileas Fogg", "--logprobs", "2", "--prompt-logprobs", "0", "--job-id", "x")
    start(connection, "x")
    tokens = [(14, ","), (362, " qui")]
    entries = [("x", TokenEvent(n, token, text, LISTED[n - 1])) for n, (token, text) in enumerate(tokens, start=1)]
    publish(connection, entries, running_ttl=600)
    connection.set(keys.prompt_logprobs("x"), "[null,[-0.25]]", ex=600)
    end(connection, "x", 2)
    return connection


def test_submit_asks_for_logprobs_of_the_answer_and_of_the_prompt(connection: redis.Redis) -> None:
    asked = ("--logprobs", "0", "--prompt-logprobs", "20", "--max-new-tokens", "0")

    client("submit", "Phileas Fogg", *asked, "--job-id", "x")

    request = request_of(fetch(connection, "x"))
    assert (request.logprobs, request.prompt_logprobs, request.max_new_tokens) == (0, 20, 0)
    assert "settings max_new_tokens 0, stop_ids [0], logprobs 0, prompt_logprobs 20\n" in client("status", "x").stdout


def test_counts_out_of_range_and_no_token_without_scores_are_refused() -> None:
    assert refusal("a", "--logprobs", "21") == "error: logprobs must be at most 20, got 21"
    assert refusal("a", "--prompt-logprobs", "-1") == "error: prompt_logprobs must be at least 0, got -1"
    assert refusal("a", "--max-new-tokens", "0") == "error: max_new_tokens must be at least 1, got 0"


def test_json_events_have_logprobs_and_a_text_has_none(answered: redis.Redis) -> None:
    first, second, last = events(client("tail", "x", "--json"))

    assert [{name: one[name] for name in SHOWN[0]} for one in (first, second)] == SHOWN
    assert last["event"] == "end"
    assert client("tail", "x").stdout == ", qui\n"
    assert client("result", "x").stdout == ", qui\n"


def test_a_result_in_json_has_logprobs_of_the_answer_and_of_the_prompt(answered: redis.Redis) -> None:
    (result,) = events(client("result", "x", "--json"))

    assert result["logprobs"] == SHOWN
    assert result["prompt_logprobs"] == [None, {"logprob": -0.25, "top_logprobs": []}]


def test_a_table_shows_tokens_in_words(answered: redis.Redis) -> None:
    lines = client("result", "x", "--format", "logprobs").stdout.splitlines()

    assert [line.split("  ")[0] for line in lines] == ["N", "prompt 1", "prompt 2", "1", "2"]
    assert [line.split()[2:4] for line in lines[1:3]] == [["'Phileas'", "-"], ["'", "Fogg'"]]
    assert lines[3].split()[1:] == ["','", "-0.5000", "','", "-0.5000,", "<|endoftext|>", "-2.2500"]


def test_a_table_shows_ids_where_no_tokenizer_is_known(answered: redis.Redis) -> None:
    publish_card(answered, ModelCard("base", 128, 2048, (0,), "f", "", "gone"), "")
    answered.delete(keys.tokenizer("gone"))

    lines = client("result", "x", "--format", "logprobs").stdout.splitlines()

    assert lines[4].split() == ["2", "362", "-3.0000", "297", "-0.1250,", "362", "-3.0000"]


def test_a_job_without_logprobs_has_no_table(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "x")
    start(connection, "x")
    end(connection, "x", 0)

    result = client("result", "x", "--format", "logprobs")

    assert result.exit_code == 2
    assert "the job x has no logprobs; submit it with --logprobs K or --prompt-logprobs K" in result.stderr
