"""Batches with the openai package: what comes of the lines of a file, right ones and wrong ones."""

from __future__ import annotations

import json

from gateway.batch_files import CHATS, line, outcomes, run
from gateway.gateway_process import Gateway

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
