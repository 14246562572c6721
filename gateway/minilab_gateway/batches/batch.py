"""A batch as it stands: what was asked, how far it is, and OpenAI's object of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]

ENDED: Final[frozenset[Status]] = frozenset({"failed", "completed", "expired", "cancelled"})

_STAMPS: Final = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a client asks for, and what its key may do."""

    owner: str
    endpoint: str
    input_file_id: str
    metadata: Mapping[str, str] | None
    output_seconds: int
    jobs: int | None
    """Jobs at once, of the key."""
    tokens_per_minute: int | None
    """Of the key."""
    models: Sequence[str] | None
    """Models that the key may ask; None for all."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it stands."""

    batch_id: str
    asked: NewBatch
    status: Status
    created_at: int
    expires_at: int
    stamps: Mapping[str, int]
    total: int
    completed: int
    failed: int
    model: str | None
    errors: Sequence[Mapping[str, Any]] = ()
    output_bytes: int = 0
    error_bytes: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    window: int = 0
    """Seconds."""
    is_expiring: bool = False
    """Whether lines are given up as the window is over."""

    def to_json(self) -> dict[str, Any]:
        errors = {"object": "list", "data": list(self.errors)} if self.errors else None
        return {
            "id": self.batch_id,
            "object": "batch",
            "endpoint": self.asked.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.asked.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{name: self.stamps.get(name) for name in _STAMPS},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": None if self.asked.metadata is None else dict(self.asked.metadata),
        }


def output_file_id(batch_id: str) -> str:
    """The file of answers: whichever gateway writes the first line, it is the same."""
    return f"file-{batch_id.removeprefix('batch_')}-output"


def error_file_id(batch_id: str) -> str:
    return f"file-{batch_id.removeprefix('batch_')}-errors"


def batch_of(batch_id: str, record: Mapping[bytes, bytes], completed: int, failed: int) -> Batch | None:
    """The batch in its hash; None where there is none. ``completed`` and ``failed`` lines stand in its files so far."""
    if b"status" not in record or b"owner" not in record:
        return None
    text = {name.decode(): value.decode() for name, value in record.items()}
    asked = NewBatch(
        text["owner"],
        text["endpoint"],
        text["input_file_id"],
        json.loads(text["metadata"]),
        int(text["output_seconds"]),
        json.loads(text["jobs"]),
        json.loads(text.get("tokens_per_minute", "null")),  # which older gateways did not write
        json.loads(text["models"]),
    )
    status: Any = text["status"]
    created_at, expires_at, window = (int(text[name]) for name in ("created_at", "expires_at", "window"))
    if status in ENDED:  # its files may have expired or been deleted since
        completed, failed = int(text.get("completed", 0)), int(text.get("failed", 0))
    return Batch(
        batch_id,
        asked,
        status,
        created_at,
        expires_at,
        {name: int(text[name]) for name in _STAMPS if name in text},
        int(text.get("total", 0)),
        completed,
        failed,
        text.get("model"),
        json.loads(text.get("errors", "[]")),
        int(text.get("output_bytes", 0)),
        int(text.get("error_bytes", 0)),
        text.get("output_file_id"),
        text.get("error_file_id"),
        window,
        "is_expiring" in text,
    )
