"""``minilab-client submit``: what it takes, what it refuses, what it prints. No server is needed."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
import redis
from minilab_client.chat import chat
from minilab_client.cli import main
from minilab_client.submit import submit
from support.client_program import announce_worker, client, end, events, fake_redis, queued, start, write

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.request import MAX_SEED, SETTING_FIELDS


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


def refusal(*arguments: str, stdin: str | bytes | None = None, **variables: str) -> str:
    """The one line on stderr for a refused submission."""
    result = client("submit", *arguments, stdin=stdin, **variables)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


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


@pytest.mark.parametrize("command", [submit, chat])
def test_every_setting_of_a_request_has_an_option_of_its_name(command: click.Command) -> None:
    assert {option.name for option in command.params} >= set(SETTING_FIELDS)


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


def test_what_comes_through_a_pipe_is_the_text_where_nothing_else_is_given(connection: redis.Redis) -> None:
    client("submit", "Phileas\nFogg", "--job-id", "typed")
    client("submit", "--job-id", "piped", stdin="Phileas\nFogg\n")

    assert prompt_of(connection, "piped") == prompt_of(connection, "typed")


def test_a_text_that_is_given_leaves_standard_input_alone(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "typed")
    client("submit", "Phileas Fogg", "--job-id", "both", stdin="Le capitaine Nemo")

    assert prompt_of(connection, "both") == prompt_of(connection, "typed")


def test_nothing_at_all_is_refused_with_the_ways_there_are() -> None:
    said = refusal(stdin="")

    assert "give TEXT, or - to read it from standard input, or --file, or --ids" in said
    assert "nothing came from standard input" in said


def test_words_without_quotes_are_refused_with_the_command_that_was_meant() -> None:
    said = refusal("Phileas", "Fogg's", "club")

    assert "TEXT must be one argument, got 3; put quotes around it" in said
    quoted = shlex.quote("Phileas Fogg's club")
    assert f"minilab-client submit {quoted}" in said


def test_a_file_holds_the_text(connection: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Phileas\nFogg\n", encoding="utf-8-sig")

    client("submit", "Phileas\nFogg", "--job-id", "typed")
    client("submit", "-f", str(file), "--job-id", "filed", stdin="Le capitaine Nemo")

    assert prompt_of(connection, "filed") == prompt_of(connection, "typed")


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

    assert "may hold 1 waiting jobs" in refusal("Phileas Fogg", MINILAB_MAX_QUEUED="1")
    assert len(queued(connection)) == 1


def test_an_unknown_option_is_one_line_on_stderr() -> None:
    assert "see minilab-client submit --help" in refusal("Phileas Fogg", "--temprature", "1")


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


def test_no_redis_is_one_line_and_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(url: str | None) -> redis.Redis:
        raise RedisUnavailableError("no Redis answers\n  start one")

    monkeypatch.setattr("minilab_gen.protocol.connection.connect", connect)

    result = client("submit", "Phileas Fogg")

    assert (result.exit_code, result.stdout, result.stderr) == (4, "", "error: no Redis answers start one\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (redis.ConnectionError("Connection closed by server."), "error: Redis was lost: Connection closed by server;"),
        (redis.TimeoutError("Timeout reading"), "error: Redis was lost: Timeout reading;"),
        (redis.ReadOnlyError("READONLY You can't write"), "error: Redis only serves readers: READONLY"),
        (
            redis.OutOfMemoryError("Command # 1 (HSET rq:job:x secret) of pipeline caused error: OOM not allowed"),
            "error: Redis is full: OOM not allowed;",
        ),
    ],
)
def test_redis_failing_in_the_middle_is_one_line_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, error: redis.RedisError, said: str
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr("minilab_gen.protocol.submission.enqueue", fail)

    result = client("submit", "Phileas Fogg")

    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("--redis-url", "redis://here", "jobs"), ("jobs", "--redis-url", "redis://here")]
)
def test_the_redis_url_may_stand_before_or_after_the_command(
    monkeypatch: pytest.MonkeyPatch, connection: redis.Redis, arguments: tuple[str, ...]
) -> None:
    asked = []

    def connect(url: str | None) -> redis.Redis:
        asked.append(url)
        return connection

    monkeypatch.setattr("minilab_gen.protocol.connection.connect", connect)

    client(*arguments, MINILAB_REDIS_URL="redis://elsewhere")

    assert asked == ["redis://here"]


@pytest.mark.parametrize("command", main.commands)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = client(command, "--help")

    assert result.exit_code == 0
    assert f"  minilab-client {command}" in result.stdout.partition("Example")[2]


def test_the_program_without_a_command_shows_its_help_as_bad_usage() -> None:
    result = client()

    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def test_the_version_is_shown() -> None:
    assert client("--version").stdout.startswith("minilab-client ")
