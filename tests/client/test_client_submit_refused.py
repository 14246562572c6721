"""What ``minilab-client submit`` refuses, with rule and value, before anything is enqueued. No server is needed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import redis
from support.client_program import announce_worker, client, fake_redis, queued, refusal

from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.request import MAX_SEED


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, with a worker for what is submitted."""
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "1_000", "0x5", "１２", "", "0,5", "1 ", "-1", "--1"])
@pytest.mark.parametrize("option", ["--temperature", "--top-p"])
def test_a_number_that_is_none_or_out_of_range_is_refused_before_anything_is_enqueued(
    connection: redis.Redis, option: str, value: str
) -> None:
    refusal("Phileas Fogg", option, value)

    assert queued(connection) == []


@pytest.mark.parametrize("value", ["1_000", "１２", "0x5", "1.0", "", " 3", "+3", "nan", "9" * 5000, "-1", "0"])
@pytest.mark.parametrize("option", ["--max-new-tokens", "--top-k", "--timeout", "--ttl", "--max-queued"])
def test_a_count_that_is_none_or_below_1_is_refused(connection: redis.Redis, option: str, value: str) -> None:
    refusal("Phileas Fogg", option, value)

    assert queued(connection) == []


@pytest.mark.parametrize("seed", ["-1", str(MAX_SEED + 1), "1.5", "true", str(2**64), "１"])
def test_a_seed_out_of_range_is_refused(seed: str) -> None:
    refusal("Phileas Fogg", "--temperature", "1", "--seed", seed)


def test_a_refusal_gives_the_rule_and_the_value() -> None:
    assert "must be a decimal number in ASCII digits, got 'nan'" in refusal("Phileas Fogg", "--temperature", "nan")
    assert "top_p must be above 0 and at most 1, got 1.5" in refusal("Phileas Fogg", "--top-p", "1.5")
    assert "max_new_tokens must be at least 1, got 0" in refusal("Phileas Fogg", "--max-new-tokens", "0")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--min-p", "1.5"], "min_p must be from 0 to 1, got 1.5"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0, got 0.0"),
        (["--presence-penalty", "-2.5"], "presence_penalty must be from -2 to 2, got -2.5"),
        (["--frequency-penalty", "nan"], "must be a decimal number in ASCII digits, got 'nan'"),
        (["--min-tokens", "65"], "min_tokens must be at most max_new_tokens, 64, got 65"),
        (["--allowed-token-ids", ""], "must be ids in ASCII digits with commas between them, got ''"),
        (["--allowed-token-ids", "2048"], "allowed_token_ids must be below 2048, got 2048"),
        (["--bad-word", " "], "bad_words must hold texts of 1 to 1000 whole characters, got ' '"),
        (["--bad-word-ids", "5,6,2048"], "bad_words_ids must be below 2048, got 2048 at position 2"),
        *((["--logit-bias", f"{key}=1"], f"got {key!r}") for key in (" 1", "+1", "-1", "1_0", "１", "01", "", "a")),
        (["--logit-bias", "5"], "must be ID=BIAS or JSON, got '5'"),
        (["--logit-bias", "5="], "must be a decimal number in ASCII digits, got ''"),
        (["--logit-bias", "9" * 5000], "must be ID=BIAS or JSON, got '9999"),
        (["--include-stop"], "--include-stop goes with --stop"),
        (["--logit-bias", "5=1e400"], "the logit_bias of 5 must be a finite number, got inf"),
        (["--logit-bias", "5=101"], "the logit_bias of 5 must be from -100 to 100, got 101.0"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "must name each id once, got 5 twice"),
        (["--logit-bias", '{"5": 1, "5": 2}'], "must name each id once, got 5 twice"),
        (["--logit-bias", '{"5": "1"}'], "must have numbers as biases, got '1' for 5"),
        (["--logit-bias", '{"5": true}'], "must have numbers as biases, got True for 5"),
        (["--logit-bias", '{"5": {}}'], "must have numbers as biases, got [] for 5"),
        (["--logit-bias", '{"5": NaN}'], "the logit_bias of 5 must be a finite number, got nan"),
        (["--logit-bias", '{"05": 1}'], "got '05'"),
        (["--logit-bias", '{"5"}'], "must be JSON, got '{\"5\"}'"),
        (["--logit-bias", "2048=1"], "logit_bias ids must be below 2048, got 2048"),
    ],
)
def test_a_setting_that_breaks_a_rule_is_refused_before_anything_is_enqueued(
    connection: redis.Redis, arguments: list[str], rule: str
) -> None:
    assert rule in " ".join(refusal("Phileas Fogg", *arguments).split())
    assert queued(connection) == []


@pytest.mark.parametrize("option", ["--logit-bias", "--stop-id", "--allowed-token-ids", "--top-p"])
def test_a_long_value_is_refused_in_a_short_message(option: str) -> None:
    for value in ("x" * 5000, "9" * 5000 + "=1", '{"5": ' + "9" * 5000 + "}"):
        assert len(refusal("Phileas Fogg", option, value)) < 500


def test_a_refusal_names_the_variable_that_a_value_came_from() -> None:
    assert "MINILAB_TOP_P" in refusal("Phileas Fogg", MINILAB_TOP_P="nan")


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ("5,1_000", "'1_000' at position 1"),
        ("0x5", "'0x5' at position 0"),
        ("5,12,1.0", "'1.0' at position 2"),
        ("", "'' at position 0"),
        ("5,,7", "'' at position 1"),
        ("5,7,", "'' at position 2"),
        ("5, 7", "' 7' at position 1"),
        ("１２", "'１２' at position 0"),
        ("-1", "'-1' at position 0"),
        ("9" * 30, f"'{'9' * 30}' at position 0"),
        ("5,5279552648203111001", "5279552648203111001 at position 1"),
        ("5,2048", "2048 at position 1"),
    ],
)
def test_bad_ids_are_refused_with_their_position(connection: redis.Redis, ids: str, what: str) -> None:
    assert what in refusal("--ids", ids)
    assert queued(connection) == []


@pytest.mark.parametrize("job_id", ["a:b", "a b", "ü", "", "x" * 129])
def test_a_bad_job_id_is_refused_before_a_connection_is_made(monkeypatch: pytest.MonkeyPatch, job_id: str) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    assert "a job id must be 1 to 128 letters" in refusal("Phileas Fogg", "--job-id", job_id)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--temperature", "nan"),
        ("--max-new-tokens", "0"),
        ("--timeout", "0"),
        ("--stop-id", "-1"),
        ("--stop", ""),
        ("--stop", "a" * 257),
        ("--stop", "\udcff"),
        tuple(["--stop", "a"] * 17),
        ("--model", "a.low"),
    ],
)
def test_bad_settings_are_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    refusal("Phileas Fogg", *arguments)


def test_text_and_ids_together_are_refused() -> None:
    assert "not both" in refusal("Phileas Fogg", "--ids", "5")


def test_nothing_at_all_is_refused_with_the_ways_there_are() -> None:
    said = refusal(stdin="")

    assert "give TEXT, or - to read it from standard input, or --file, or --ids" in said
    assert "nothing came from standard input" in said


def test_words_without_quotes_are_refused_with_the_command_that_was_meant() -> None:
    said = refusal("Phileas", "Fogg's", "club")

    assert "TEXT must be one argument, got 3; put quotes around it" in said
    quoted = shlex.quote("Phileas Fogg's club")
    assert f"minilab-client submit {quoted}" in said


@pytest.mark.parametrize("others", [("Phileas Fogg",), ("--ids", "5")])
def test_a_file_beside_another_prompt_is_refused(tmp_path: Path, others: tuple[str, ...]) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Phileas Fogg")

    assert "not both" in refusal("-f", str(file), *others)


def test_a_file_that_is_not_there_is_refused_by_its_name() -> None:
    assert "/nowhere/prompt.txt" in refusal("-f", "/nowhere/prompt.txt")


def test_a_system_message_needs_a_chat() -> None:
    assert "--system goes with --chat" in refusal("Phileas Fogg", "--system", "Be brief.")


@pytest.mark.parametrize(("arguments", "stdin"), [(("",), None), (("-",), ""), (("-",), "\n")])
def test_an_empty_text_is_refused(arguments: tuple[str, ...], stdin: str | None) -> None:
    assert "at least 1 token" in refusal(*arguments, stdin=stdin)


def test_standard_input_that_is_no_utf_8_is_refused() -> None:
    assert "UTF-8" in refusal("-", stdin=b"Phil\xe9as")


def test_a_text_that_was_no_utf_8_is_refused() -> None:
    assert "UTF-8" in refusal("Phil\udce9as")


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    assert "prompt must hold 1 to" in refusal("--ids", ",".join(["5"] * 5000))


def test_a_stop_id_outside_the_vocabulary_is_refused() -> None:
    assert "stop_ids must be below" in refusal("Phileas Fogg", "--stop-id", "1000000")


def test_a_model_that_no_worker_announced_is_refused() -> None:
    assert "no worker has announced the model other" in refusal("Phileas Fogg", "--model", "other")


def test_a_taken_job_id_is_refused_and_its_job_untouched(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "x")

    assert "choose another --job-id" in refusal("--ids", "5", "--job-id", "x")
    assert queued(connection) == ["x"]
    assert len(request_of(fetch(connection, "x")).prompt) == 2


def test_a_full_queue_refuses_more_jobs(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", MINILAB_MAX_QUEUED="1")

    assert "may hold 1 waiting job," in refusal("Phileas Fogg", MINILAB_MAX_QUEUED="1")
    assert len(queued(connection)) == 1
