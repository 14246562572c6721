"""Files of requests, and what is asked of a gateway about them. It must not hold a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import openai
import redis
from openai.types import Batch
from rq.job import Job
from support.own_service import LIMIT
from support.waiting import wait_until

from gateway.gateway_process import Gateway

COMPLETIONS: Final = "/v1/completions"
CHATS: Final = "/v1/chat/completions"

LONG: Final[dict[str, Any]] = {"max_tokens": 30, "ignore_eos": True}

ENDED: Final = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    """A line that asks for three greedy tokens, or for what is given."""
    given = {"model": "base", "max_tokens": 3, "temperature": 0, **body}
    if url == COMPLETIONS:
        given.setdefault("prompt", [5, 6])
    else:
        given.setdefault("messages", [{"role": "user", "content": "x"}])
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": given}


def jsonl(lines: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def begin(client: openai.OpenAI, content: bytes, endpoint: Any = COMPLETIONS, **more: Any) -> Batch:
    """Upload a file and ask for its answers."""
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def ended(client: openai.OpenAI, batch: Batch, limit: float = LIMIT) -> Batch:
    """The batch once it has ended."""
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED, limit)
    return client.batches.retrieve(batch.id)


def run(gateway: Gateway, lines: Sequence[Any], endpoint: Any = COMPLETIONS) -> Batch:
    """The ended batch of these lines."""
    client = gateway.client()
    return ended(client, begin(client, jsonl(lines), endpoint))


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The objects in a file; none where there is no file."""
    if file_id is None:
        return []
    return [json.loads(each) for each in client.files.content(file_id).read().splitlines()]


def outcomes(client: openai.OpenAI, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stands in the two files, by custom_id, of which each is there once."""
    answers, errors = (lines_of(client, file_id) for file_id in (batch.output_file_id, batch.error_file_id))
    names = [each["custom_id"] for each in (*answers, *errors)]
    assert len(set(names)) == len(names)
    return tuple({each["custom_id"]: each for each in found} for found in (answers, errors))  # type: ignore[return-value]


def errors_of(batch: Batch) -> list[tuple[str | None, int | None]]:
    """The code and the line of each error for which a batch failed."""
    assert batch.errors is not None
    return [(error.code, error.line) for error in batch.errors.data or []]


def long_lines(count: int, **more: Any) -> list[dict[str, Any]]:
    return [line(f"n{number}", prompt=[5, number], **LONG, **more) for number in range(count)]


def counts(client: openai.OpenAI, batch: Batch) -> dict[str, int]:
    found = client.batches.retrieve(batch.id).request_counts
    assert found is not None
    return {"total": found.total, "completed": found.completed, "failed": found.failed}


def wait_for_answers(client: openai.OpenAI, batch: Batch, count: int) -> None:
    wait_until(lambda: counts(client, batch)["completed"] >= count, LIMIT)


def jobs_in(connection: redis.Redis) -> list[str]:
    prefix = Job.key_for("")
    found: list[bytes] = list(connection.scan_iter(match=f"{prefix}*"))
    return [key.decode().removeprefix(prefix) for key in found]
