"""A job as it stands, with its prompt and times: as lines for a person, as an object for a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import redis

from minilab_client.follow import reason_to_wait
from minilab_client.output import write
from minilab_client.prompt_texts import PromptTexts, shown_prompt
from minilab_client.times import shown
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol.details import JobDetails, details
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import JobView, fetch, request_of, view
from minilab_gen.request import GREEDY

_LISTED: Final = 8
"""Entries of a setting that are shown one by one."""

_SHOWN: Final = 60
"""Characters of one that is an object or text."""


def write_lines(lines: Mapping[str, object]) -> None:
    """A line for each value that there is."""
    for name, value in lines.items():
        if value is not None:
            write(f"{name:<8} {value}\n")


@dataclass(frozen=True, slots=True)
class Standing:
    """A job as it stands, with what is known beside."""

    found: JobView
    known: JobDetails
    prompt: str | None
    """Its beginning in words, where they are known."""
    asked: dict[str, Any] | None
    """What it asks beside its prompt, as its payload has it; None where its record cannot be read."""

    @classmethod
    def of(cls, connection: redis.Redis, job_id: str) -> Self:
        """Raises UnknownJobError."""
        settle(connection, job_id)  # a job that waited longer than its ttl has expired, though no worker has said so
        found = view(connection, job_id)
        (known,) = details(connection, [job_id])
        count = known.prompt_tokens or len(known.first_ids)
        prompt = PromptTexts(connection).beginning(found.model, known.first_ids, count)
        return cls(found, known, prompt, _settings(connection, job_id))

    def speed(self, now: datetime) -> float | None:
        """Tokens per second; None for a job that waits."""
        return None if self.found.state == "queued" else self.known.tokens_per_second(self.found.tokens, now)

    def to_json(self) -> dict[str, Any]:
        shown = _as_json(self.found, self.known, self.prompt, self.speed(datetime.now(UTC)))
        return shown | {"settings": self.asked}

    def lines(self, now: datetime, *, utc: bool) -> dict[str, object]:
        of_request = _prompt_line(self.prompt, self.known) | _settings_line(self.asked)
        return _lines(self.found) | of_request | _time_lines(self.known, now, self.speed(now), utc=utc)


def _as_json(found: JobView, known: JobDetails, prompt: str | None, speed: float | None) -> dict[str, Any]:
    ending = {name: value for name, value in found.end.to_json().items() if name != "text"} if found.end else {}
    return {
        "job_id": found.job_id,
        "state": found.state,
        "model": found.model,
        "tokens": found.tokens,
        "position": found.position,
        "worker": found.worker,
        "workers_alive": found.workers_alive,
        "error": found.error,
        "end": None,
        "prompt": prompt,
        "prompt_tokens": known.prompt_tokens,
        "tokens_per_second": None if speed is None else round(speed, 1),
        **{name: moment and moment.isoformat(timespec="milliseconds") for name, moment in _times(known).items()},
        **ending,
    }


def _settings(connection: redis.Redis, job_id: str) -> dict[str, Any] | None:
    try:
        payload = request_of(fetch(connection, job_id)).to_payload()
    except MiniLabError:
        return None
    return {name: value for name, value in payload.items() if name != "prompt"}


_SHOWN_WHEN_GIVEN: Final = ("max_new_tokens", "logprobs", "prompt_logprobs")
"""Settings of which 0 says something."""


def _settings_line(asked: dict[str, Any] | None) -> dict[str, object]:
    """The settings that are not at their defaults, with the seed of a sampled job; long lists by their lengths."""
    default, given = GREEDY.to_payload(), asked or {}
    always = {*_SHOWN_WHEN_GIVEN, *(("seed",) if given.get("temperature") else ())}
    parts = [
        f"{name} {_short(value)}"
        for name, value in given.items()
        if name in always or (value and value != default.get(name))
    ]
    return {"settings": ", ".join(parts) or None}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str | dict):
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return text if isinstance(value, int) or len(value) <= _LISTED else f"of {len(value)}"


def _times(known: JobDetails) -> dict[str, datetime | None]:
    return {"created": known.created, "started": known.started, "ended": known.ended}


def _prompt_line(prompt: str | None, known: JobDetails) -> dict[str, object]:
    count = "" if prompt is None or known.prompt_tokens is None else f"  ({known.prompt_tokens} tokens)"
    text = shown_prompt(prompt, known.prompt_tokens)
    return {"prompt": None if text is None else f"{text}{count}"}


def _time_lines(known: JobDetails, now: datetime, speed: float | None, *, utc: bool) -> dict[str, object]:
    times = {name: moment and shown(moment, now, utc=utc) for name, moment in _times(known).items()}
    return {**times, "speed": None if speed is None else f"{speed:.0f} tokens/s"}


def _lines(found: JobView) -> dict[str, object]:
    return {
        "job": found.job_id,
        "state": found.state,
        "waiting": reason_to_wait(found),
        "model": found.model,
        "tokens": found.tokens,
        "worker": found.worker,
        "workers": f"{found.workers_alive} alive",
        "end": found.end and _shown_end(found.end),
        "error": (found.end.error if found.end else None) or found.error,
    }


def _shown_end(end: EndEvent) -> str:
    if end.complete is False:
        return f"{end.reason}, not complete"
    return end.reason if end.stop_text is None else f"{end.reason} ({json.dumps(end.stop_text, ensure_ascii=False)})"
