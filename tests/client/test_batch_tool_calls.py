"""Calls of tools in batch lines of OpenAI's format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batch_files import asked_model, good_lines, write_lines
from support.call_templates import GRANITE

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch import openai_form
from minilab_gen.batch.choices import choices_of
from minilab_gen.batch.line import Line
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer
from minilab_gen.text.chat import ChatFormat

TOOLS = [{"type": "function", "function": {"name": "time"}}]
CALL = '<|tool_call|>[{"name": "time", "arguments": {"zone": "Suez"}}]'


def chatting() -> AskedModel:
    base = asked_model()
    return AskedModel(replace(base.card, chat=ChatFormat(GRANITE), context_length=2048), base.tokenizer)


def line_of(file: Path, **fields: Any) -> Line:
    body = {"messages": [{"role": "user", "content": "?"}], "tools": TOOLS, "temperature": 0, "max_tokens": 9, **fields}
    (line,) = good_lines(
        write_lines(file, {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}), chatting()
    )
    return line


def choices(line: Line, *texts: str) -> list[dict[str, Any]]:
    model = chatting()
    given = [
        (each, f"job-{index}", Answer(tuple(model.tokenizer.encode(text)), text, EndEvent("stop", 5, 3), 0.0, None))
        for index, (each, text) in enumerate(zip(choices_of(line), texts, strict=True))
    ]
    written: list[dict[str, Any]] = openai_form.answer(given, model)["response"]["body"]["choices"]
    return written


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_calls_in_the_answers_of_a_line_are_objects_with_ids_that_differ(file: Path) -> None:
    line = line_of(file, n=2)

    one, other = choices(line, "Vu. " + CALL, CALL)

    assert one["message"]["content"] == "Vu."
    assert other["message"]["content"] is None
    (call,), (again,) = one["message"]["tool_calls"], other["message"]["tool_calls"]
    assert call["function"] == again["function"] == {"name": "time", "arguments": '{"zone": "Suez"}'}
    assert call["id"] != again["id"]
    assert (one["finish_reason"], other["finish_reason"]) == ("tool_calls", "tool_calls")
    assert choices(line, "Vu. " + CALL, CALL) == [one, other]


def test_a_line_that_must_call_begins_the_call_in_its_prompt(file: Path) -> None:
    line = line_of(file, tool_choice="required")

    (choice,) = choices(line, "{}")

    assert choice["message"]["tool_calls"][0]["function"] == {"name": "time", "arguments": "{}"}
    assert chatting().tokenizer.decode(line.request.prompt).endswith('<|tool_call|>[{"name": "time", "arguments":')
    assert line.request.form is not None


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}], ids=str)
def test_a_line_without_tools_or_without_the_choice_keeps_calls_as_text(file: Path, fields: dict[str, Any]) -> None:
    (choice,) = choices(line_of(file, **fields), CALL)

    assert choice["message"] == {"role": "assistant", "content": CALL}
    assert choice["finish_reason"] == "stop"
