"""A job as a line of the list: what it was asked, how fast it went, when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import redis

from minilab_client.prompt_texts import PromptTexts, shown_prompt
from minilab_client.times import shown
from minilab_gen.protocol.details import JobDetails, details
from minilab_gen.protocol.listing import JobRow


@dataclass(frozen=True, slots=True)
class JobLine:
    """A row of the list with its details."""

    HEADINGS: ClassVar = ("JOB", "STATE", "MODEL", "PRIORITY", "TOKENS", "TOKENS/S", "END", "CREATED", "PROMPT")

    row: JobRow
    known: JobDetails
    prompt: str | None
    """Its beginning in words, where they are known."""

    def cells(self, now: datetime, *, utc: bool) -> tuple[object, ...]:
        row, speed = self.row, self._speed(now)
        return (
            *(row.job_id, row.state, row.model, row.priority, row.tokens),
            None if speed is None else f"{speed:.0f}",
            row.end,
            shown(datetime.fromisoformat(row.created), now, utc=utc),
            shown_prompt(self.prompt, self.known.prompt_tokens),
        )

    def to_json(self) -> dict[str, Any]:
        speed = self._speed(datetime.now(UTC))
        return {
            **asdict(self.row),
            "tokens_per_second": None if speed is None else round(speed, 1),
            "prompt_tokens": self.known.prompt_tokens,
            "prompt": self.prompt,
        }

    def _speed(self, now: datetime) -> float | None:
        """None for a job that waits, also for one that was requeued and waits again."""
        return None if self.row.state == "queued" else self.known.tokens_per_second(self.row.tokens, now)


def job_lines(connection: redis.Redis, rows: Sequence[JobRow]) -> list[JobLine]:
    """The lines of these jobs; only of these is more read than whether they are wanted."""
    texts = PromptTexts(connection)
    lines = []
    for row, known in zip(rows, details(connection, [row.job_id for row in rows]), strict=True):
        prompt = texts.beginning(row.model, known.first_ids, known.prompt_tokens or len(known.first_ids))
        lines.append(JobLine(row, known, prompt))
    return lines
