"""The form of an answer on the command line and in lines of a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_client.exit_codes import ExitCode, say_end
from support.batch_files import openai, own, read_file, write_lines
from support.client_program import announce_worker, client, fake_redis, refusal
from support.random_forms import form_of, schema_form

from minilab_gen.answer_form import AnswerForm
from minilab_gen.batch.line import BadLine, Line
from minilab_gen.protocol.events import EndEvent, decode_entry
from minilab_gen.protocol.jobs import fetch, request_of

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
GRAMMAR = 'start: "oui" | "non"'


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return str(file)


def test_each_option_of_a_form_reaches_the_queue(connection: redis.Redis, schema_file: str, tmp_path: Path) -> None:
    (tmp_path / "g.lark").write_text(GRAMMAR + "\n")
    options: dict[str, tuple[list[str], AnswerForm]] = {
        "schema": (["--json-schema", schema_file], schema_form(SCHEMA)),
        "object": (["--json-object"], form_of(response_format={"type": "json_object"})),
        "regex": (["--regex", "[a-z]+"], form_of(regex="[a-z]+")),
        "choice": (["--choice", "oui", "--choice", "non"], form_of(choice=["oui", "non"])),
        "grammar": (["--grammar", str(tmp_path / "g.lark")], form_of(grammar=GRAMMAR)),
    }
    for job_id, (arguments, form) in options.items():
        result = client("submit", "Phileas Fogg", "--job-id", job_id, *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        assert request_of(fetch(connection, job_id)).form == form


def test_status_shows_the_form(connection: redis.Redis, schema_file: str) -> None:
    client("submit", "Phileas Fogg", "--job-id", "x", "--json-schema", schema_file)
    client("submit", "Phileas Fogg", "--job-id", "y", "--choice", "oui", "--regex", "")
    client("submit", "Phileas Fogg", "--job-id", "z", "--regex", "[é]+")

    assert 'response_format {"type": "json_schema", "json_schema": {"schema": ' in client("status", "x").stdout
    assert 'regex "[é]+"' in client("status", "z").stdout
    asked = json.loads(client("status", "x", "--json").stdout)["settings"]
    assert asked["response_format"]["json_schema"] == {"schema": SCHEMA}


@pytest.mark.usefixtures("connection")
def test_what_is_no_form_is_refused_before_anything_is_enqueued(schema_file: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert "must be JSON" in refusal("x", "--json-schema", str(bad))
    bad.write_text('{"uniqueItems": true}')
    assert "the keyword 'uniqueItems' at # is not supported" in refusal("x", "--json-schema", str(bad))
    assert "either --json-schema or --json-object" in refusal("x", "--json-schema", schema_file, "--json-object")
    assert "got regex and choice" in refusal("x", "--regex", "a", "--choice", "b")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lines.jsonl"


def form_in(file: Path, line: dict[str, Any]) -> AnswerForm | None:
    (found,) = read_file(write_lines(file, line))
    assert isinstance(found, Line), found
    return found.request.form


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"response_format": NAMED}, schema_form(SCHEMA)),
        ({"response_format": {"type": "json_object"}}, form_of(response_format={"type": "json_object"})),
        ({"response_format": {"type": "text"}}, None),
        ({"regex": "[a-z]+", "choice": None}, form_of(regex="[a-z]+")),
        ({"choice": ["a", "b"]}, form_of(choice=["a", "b"])),
        ({"grammar": GRAMMAR}, form_of(grammar=GRAMMAR)),
    ],
)
@pytest.mark.parametrize("line", [own, openai])
def test_lines_of_both_forms_take_ours_and_openais_names(
    file: Path, line: Any, fields: dict[str, Any], form: AnswerForm | None
) -> None:
    assert form_in(file, line("a", **fields)) == form


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"guided_json": SCHEMA}, schema_form(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, schema_form(SCHEMA)),
        ({"guided_regex": "a+"}, form_of(regex="a+")),
        ({"guided_choice": ["a"]}, form_of(choice=["a"])),
        ({"guided_grammar": GRAMMAR}, form_of(grammar=GRAMMAR)),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, schema_form(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, form_of(response_format={"type": "json_object"})),
        ({"structured_outputs": {"choice": ["a"]}}, form_of(choice=["a"])),
        ({"structured_outputs": None}, None),
    ],
)
def test_openais_form_takes_vllms_names_too(file: Path, fields: dict[str, Any], form: AnswerForm | None) -> None:
    assert form_in(file, openai("a", **fields)) == form


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"guided_regex": "a", "response_format": NAMED},
            "one form of its answer, got guided_regex and response_format",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs must have one of json"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs must have one of json"),
        ({"structured_outputs": "a"}, "structured_outputs must be an object"),
        ({"guided_json": "{"}, "the schema must be JSON"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "keyword 'not' at #"),
    ],
)
def test_a_line_whose_form_is_none_is_refused_alone(file: Path, fields: dict[str, Any], reason: str) -> None:
    bad, good = read_file(write_lines(file, openai("a", **fields), openai("b")))
    assert isinstance(bad, BadLine)
    assert reason in bad.reason
    assert isinstance(good, Line)


def test_an_answer_that_is_cut_short_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert say_end("x", EndEvent("length", 5, 2, complete=False)) is ExitCode.DONE
    assert "job x: the answer is not complete, it ended after 5 tokens (length)" in capsys.readouterr().err
    say_end("x", EndEvent("length", 5, 2, complete=True))
    say_end("x", EndEvent("length", 5, 2))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("complete", [True, False, None])
def test_an_end_says_in_a_stream_whether_the_answer_is_whole(complete: bool | None) -> None:
    end = EndEvent("stop", 5, 2, complete=complete)
    fields = {name.encode(): value.encode() for name, value in end.to_fields().items()}
    assert fields.get(b"complete") == {True: b"true", False: b"false", None: None}[complete]
    assert decode_entry((b"6-0", fields)) == end
    assert end.to_json().get("complete") is complete
