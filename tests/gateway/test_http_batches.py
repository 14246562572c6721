"""Batches with the openai package: what comes of the lines of a file, right ones and wrong ones."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import redis
from support.waiting import wait_until

from gateway.batch_files import CHATS, COMPLETIONS, begin, ended, errors_of, jsonl, line, outcomes, run
from gateway.gateway_process import Gateway
from minilab_gen.batch.json_lines import MAX_LINE_BYTES
from minilab_gen.protocol import keys

TEN = [line(f"n{number}", prompt=[5, number]) for number in range(10)]


def test_each_line_has_the_answer_that_a_request_would_have(gateway: Gateway) -> None:
    asked = [*TEN, line("two", n=2, temperature=1, seed=3, logprobs=1), line("text", prompt="Phileas Fogg")]

    batch = run(gateway, asked)

    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 12, "completed": 12, "failed": 0}
    assert batch.error_file_id is None
    answers, _ = outcomes(gateway.client(), batch)
    for each in asked:
        found = answers[each["custom_id"]]["response"]
        direct = gateway.complete(**{**each["body"], "model": "base"}).to_dict()
        assert found["status_code"] == 200
        for same in ("choices", "usage", "model", "object", "system_fingerprint"):
            assert found["body"][same] == direct[same]


def test_chats_are_answered_too(chat_gateway: Gateway) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    batch = run(chat_gateway, [line("a", CHATS, n=2), line("b", CHATS, response_format=form, max_tokens=20)], CHATS)

    answers, errors = outcomes(chat_gateway.client(), batch)
    assert errors == {}
    assert len(answers["a"]["response"]["body"]["choices"]) == 2
    assert json.loads(answers["b"]["response"]["body"]["choices"][0]["message"]["content"]) in ("yes", "no")


def test_a_line_without_a_seed_has_one_that_is_its_own(gateway: Gateway) -> None:
    sampled = [line(name, temperature=1, max_tokens=8) for name in "abc"]

    first, again = (outcomes(gateway.client(), run(gateway, sampled))[0] for _ in range(2))

    bodies = [{name: found[name]["response"]["body"] for name in "abc"} for found in (first, again)]
    assert len({body["seed"] for body in bodies[0].values()}) == 3
    for name in "abc":
        assert bodies[0][name]["seed"] == bodies[1][name]["seed"]
        assert bodies[0][name]["choices"] == bodies[1][name]["choices"]


# lines that are none: the batch fails

BAD: dict[str, tuple[bytes, list[tuple[str, int | None]]]] = {
    "bad JSON": (jsonl(TEN[:2]) + b'{"custom_id": \n' + jsonl(TEN[2:]), [("invalid_json_line", 3)]),
    "a list": (jsonl([[1]]), [("invalid_json_line", 1)]),
    "not UTF-8": (b'{"custom_id": "\xff"}\n', [("invalid_json_line", 1)]),
    "UTF-16": ("{}\n".encode("utf-16"), [("invalid_encoding", None)]),
    "a name twice": (jsonl([*TEN, TEN[4]]), [("duplicate_custom_id", 11)]),
    "no name": (jsonl([{**TEN[0], "custom_id": None}]), [("invalid_custom_id", 1)]),
    "name missing": (jsonl([{"method": "POST"}]), [("missing_custom_id", 1)]),
    "another url": (jsonl([line("a"), line("b", CHATS)]), [("mismatched_url", 2)]),
    "an unknown url": (jsonl([line("a", "/v1/responses", prompt=[5])]), [("mismatched_url", 1)]),
    "GET": (jsonl([{**line("a"), "method": "GET"}]), [("invalid_method", 1)]),
    "no body": (jsonl([{**line("a"), "body": "x"}]), [("invalid_body", 1)]),
    "another field": (jsonl([{**line("a"), "more": 1}]), [("invalid_field", 1)]),
    "no model": (jsonl([line("a", model=None)]), [("missing_model", 1)]),
    "no such model": (jsonl([line("a", model="nobody")]), [("model_not_found", 1)]),
    "no name of a model": (jsonl([line("a", model="../x")]), [("model_not_found", 1)]),
    "letters that no name has": (jsonl([line("a", model="a b")]), [("model_not_found", 1)]),
    "a model of another type": (jsonl([line("a", model=[])]), [("invalid_model", 1)]),
    "two models": (jsonl([line("a"), line("b", model="other")]), [("mismatched_model", 2)]),
    "empty": (b"", [("empty_file", None)]),
    "blank": (b"\n \r\n\n", [("empty_file", None)]),
    "several": (b"x\n" + jsonl([line("a"), line("a")]), [("invalid_json_line", 1), ("duplicate_custom_id", 3)]),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_batch_with_a_line_that_is_none_fails_and_says_which(
    gateway: Gateway, server: redis.Redis, kind: str
) -> None:
    content, expected = BAD[kind]
    client = gateway.client()

    batch = begin(client, content)
    assert batch.status == "validating"
    batch = ended(client, batch)

    assert batch.status == "failed"
    assert errors_of(batch) == expected
    assert batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert [*server.scan_iter(match="rq:job:*")] == []


def test_a_file_of_too_many_lines_fails(gateway: Gateway) -> None:
    client = gateway.client()
    content = jsonl([{**TEN[0], "custom_id": str(number)} for number in range(50_001)])

    batch = ended(client, begin(client, content))

    assert errors_of(batch) == [("too_many_lines", None)]


def test_a_line_that_is_too_long_fails(gateway: Gateway) -> None:
    client = gateway.client()

    batch = ended(client, begin(client, jsonl(TEN[:1]) + b" " * (MAX_LINE_BYTES + 1) + b"\n"))

    assert errors_of(batch) == [("line_too_long", 2)]


def test_of_many_wrong_lines_the_first_hundred_are_told(gateway: Gateway) -> None:
    client = gateway.client()

    batch = ended(client, begin(client, b"x\n" * 1000))

    assert len(errors_of(batch)) == 100


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + jsonl(TEN[:2]),
        jsonl(TEN[:2]).replace(b"\n", b"\r\n"),
        jsonl(TEN[:1]) + b"\n\n" + jsonl(TEN[1:2]) + b"\n",
        jsonl(TEN[:2]).rstrip(),
    ],
    ids=["byte-order mark", "CRLF", "blank lines", "no last line end"],
)
def test_what_editors_do_to_a_file_changes_nothing(gateway: Gateway, content: bytes) -> None:
    client = gateway.client()

    batch = ended(client, begin(client, content))

    assert batch.status == "completed"
    assert set(outcomes(client, batch)[0]) == {"n0", "n1"}


# bodies that are refused, and jobs that fail: their line does


def test_a_body_that_asks_for_what_there_is_not_fails_its_line_only(gateway: Gateway) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "stream": {"stream": True},
        "n": {"n": 10**6},
        "max_tokens": {"max_tokens": -1},
        "temperature": {"temperature": "hot"},
        "prompt": {"prompt": [10**9]},
        "unheard_of": {"unheard_of": 1},
    }

    batch = run(gateway, [*TEN, *(line(name, **body) for name, body in wrong.items())])

    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 16, "completed": 10, "failed": 6}
    answers, errors = outcomes(gateway.client(), batch)
    assert set(answers) == {each["custom_id"] for each in TEN}
    assert set(errors) == set(wrong)
    for name, found in errors.items():
        assert found["error"] is None
        assert found["response"]["status_code"] == 400
        told = found["response"]["body"]["error"]
        assert told["type"] == "invalid_request_error"
        assert name in told["message"]


def test_a_batch_of_which_all_lines_fail_has_no_output_file(gateway: Gateway) -> None:
    batch = run(gateway, [line("a", n=0), line("b", stream=True)])

    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 2, "completed": 0, "failed": 2}
    assert batch.output_file_id is None
    assert set(outcomes(gateway.client(), batch)[1]) == {"a", "b"}


def test_a_job_that_fails_in_the_worker_is_in_the_error_file(gateway: Gateway) -> None:
    batch = run(gateway, [line("a", grammar="nothing that compiles"), TEN[0]])

    answers, errors = outcomes(gateway.client(), batch)
    assert set(answers) == {"n0"}
    told = errors["a"]["response"]
    assert told["status_code"] in (400, 500)
    assert told["body"]["error"]["message"]


# what is asked


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("completion_window", "1h"),
        ("endpoint", "/v1/responses"),
        ("endpoint", "/v1/embeddings"),
        ("input_file_id", "file-nobody"),
        ("input_file_id", "../x"),
        ("metadata", {"x": 1}),
        ("metadata", {str(number): "" for number in range(17)}),
        ("metadata", {"x": "y" * 513}),
        ("output_expires_after", {"anchor": "created_at", "seconds": 1}),
        ("output_expires_after", {"anchor": "now", "seconds": 3600}),
        ("extra", 1),
    ],
    ids=str,
)
def test_a_batch_that_cannot_be_is_refused(gateway: Gateway, field: str, value: Any) -> None:
    client = gateway.client()
    file = client.files.create(file=b"x", purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h", field: value}

    with gateway.http() as http:
        answer = http.post("/v1/batches", json=asked)

    assert answer.status_code == (404 if field == "input_file_id" else 400)
    assert answer.json()["error"]["param"] == {"input_file_id": "id"}.get(field, field)
    assert client.batches.list().data == []


def test_a_batch_says_what_it_was_asked(gateway: Gateway) -> None:
    client = gateway.client()
    after: Any = {"anchor": "created_at", "seconds": 3600}
    metadata = {"description": "nightly"}

    batch = ended(client, begin(client, jsonl(TEN), metadata=metadata, output_expires_after=after))

    assert batch.metadata == metadata
    assert (batch.endpoint, batch.completion_window, batch.object) == (COMPLETIONS, "24h", "batch")
    assert batch.expires_at == batch.created_at + 24 * 3600
    for stamp in (batch.in_progress_at, batch.finalizing_at, batch.completed_at):
        assert stamp is not None
        assert batch.created_at <= stamp
    assert batch.output_file_id is not None
    output = client.files.retrieve(batch.output_file_id)
    assert output.expires_at == output.created_at + 3600
    assert output.purpose == "batch_output"
    assert output.bytes == len(client.files.content(output.id).read())


def test_batches_are_listed_a_page_at_a_time_the_last_first(gateway: Gateway) -> None:
    client = gateway.client()
    file = client.files.create(file=jsonl(TEN[:1]), purpose="batch")
    made = [
        client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h").id for _ in range(5)
    ]

    first = client.batches.list(limit=2)
    assert (first.has_more, [batch.id for batch in first.data]) == (True, made[:2:-1])
    assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]
    assert [batch.id for batch in client.batches.list(after=made[1])] == made[:1]
    odd: list[dict[str, Any]] = [{"after": "batch_nobody"}, {"limit": 0}, {"limit": 101}]
    for wrong in odd:
        with pytest.raises(openai.BadRequestError):
            client.batches.list(**wrong)


@pytest.mark.parametrize("name", ["batch_nobody", "x" * 10_000, "%00", "..%2Fx"])
def test_an_unknown_batch_is_not_found(gateway: Gateway, name: str) -> None:
    with gateway.http() as http:
        answers = http.get(f"/v1/batches/{name}"), http.post(f"/v1/batches/{name}/cancel")

    assert [answer.status_code for answer in answers] == [404, 404]


def test_nothing_that_a_batch_leaves_stays_for_ever(gateway: Gateway, server: redis.Redis) -> None:
    run(gateway, [*TEN, line("bad", n=0)])

    ours = [key for key in server.scan_iter(match="minilab:*") if b":file" in key or b"batch" in key]
    assert len(ours) >= 8
    assert [key for key in ours if server.ttl(key) < 0] == []
    wait_until(lambda: server.zrange(keys.OPEN_BATCHES, 0, -1) == [])


def test_a_retry_with_an_idempotency_key_finds_the_first_batch(gateway: Gateway) -> None:
    client = gateway.client()
    file = client.files.create(file=("in.jsonl", jsonl(TEN[:1])), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}

    def post(retry_key: str, **more: Any) -> Any:
        with gateway.http(headers={"Idempotency-Key": retry_key}) as http:
            return http.post("/v1/batches", json={**asked, **more})

    first, again = post("k"), post("k")
    ended(client, client.batches.retrieve(first.json()["id"]))
    client.files.delete(file.id)
    later, other, another = post("k"), post("k", metadata={"a": "b"}), post("another")

    assert [answer.status_code for answer in (first, again, later, other, another)] == [200, 200, 200, 409, 404]
    assert first.json()["id"] == again.json()["id"] == later.json()["id"]
    assert later.json()["status"] == "completed"
    assert other.json()["error"]["code"] == "idempotency_key_in_use"
    assert [batch.id for batch in client.batches.list()] == [first.json()["id"]]
