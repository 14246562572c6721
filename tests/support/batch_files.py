"""What tests of ``minilab-client batch`` share: its files, read strictly, and its lines. It must not hold a test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minilab_client.batch.reader import LineReader

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.choices import choices_of
from minilab_gen.batch.json_lines import read_lines
from minilab_gen.batch.line import BadLine, Line
from minilab_gen.protocol.cards import ModelCard, digest
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer
from support.waiting import wait_until

CONTEXT = 128


def asked_model(fingerprint: str = "") -> AskedModel:
    """The base model as a client sees it."""
    tokenizer = get_tokenizer()
    card = ModelCard("base", CONTEXT, tokenizer.vocab_size, (0,), fingerprint, "", digest(tokenizer.to_json()))
    return AskedModel(card, tokenizer)


def write_lines(file: Path, *lines: dict[str, Any] | str | bytes) -> Path:
    """A file of these lines: objects, or whatever else is to stand there."""
    with file.open("wb") as out:
        for line in lines:
            content = line if isinstance(line, str | bytes) else json.dumps(line)
            out.write((content.encode() if isinstance(content, str) else content) + b"\n")
    return file


def read_file(file: Path, model: AskedModel | None = None) -> list[Line | BadLine]:
    """What the program makes of a file's lines."""
    with file.open("rb") as lines:
        return list(LineReader(model or asked_model()).read(read_lines(lines)))


def good_lines(file: Path, model: AskedModel | None = None) -> list[Line]:
    """The lines of a file that can be answered."""
    return [line for line in read_file(file, model) if isinstance(line, Line)]


def records(file: Path) -> list[dict[str, Any]]:
    """The objects in a file of whole lines."""
    if not file.exists():
        return []
    content = file.read_text(encoding="utf-8")
    assert content == "" or content.endswith("\n")
    return [json.loads(line) for line in content.splitlines()]


def custom_ids(file: Path) -> list[str]:
    return [record["custom_id"] for record in records(file)]


def ids_of(record: dict[str, Any]) -> list[list[int]]:
    """The tokens of each answer in a line of either form."""
    if "response" in record:
        choices = record["response"]["body"]["choices"]
        return [choice["token_ids"] for choice in choices]
    return [choice["ids"] for choice in record.get("choices", [record])]


def answers_to(lines: Iterable[Line], file: Path) -> list[tuple[GenerationRequest, list[int]]]:
    """The request of each answer that the lines ask for, and the tokens that the file gives for it."""
    found = {record["custom_id"]: ids_of(record) for record in records(file)}
    return [
        (choice.request, ids)
        for line in lines
        for choice, ids in zip(choices_of(line), found[line.custom_id], strict=True)
    ]


def wait_for_lines(file: Path, count: int, limit: float) -> None:
    """Wait until a file has so many whole lines."""
    wait_until(lambda: file.exists() and file.read_bytes().count(b"\n") >= count, limit)


def own(custom_id: str, prompt: str = "Phileas Fogg", **settings: Any) -> dict[str, Any]:
    """A line in our form."""
    return {"custom_id": custom_id, "prompt": prompt, **settings}


def openai(custom_id: str, prompt: str | Sequence[int] = "Phileas Fogg", **body: Any) -> dict[str, Any]:
    """A line in OpenAI's form."""
    named = {"method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}
    return {"custom_id": custom_id, **named}
