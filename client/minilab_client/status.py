"""``minilab-client status``: one job as it stands."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from minilab_client import parameters
from minilab_client.output import write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_client.times import shown
from minilab_gen.errors import MiniLabError
from minilab_gen.request import GREEDY

if TYPE_CHECKING:
    import redis

    from minilab_gen.protocol.details import JobDetails
    from minilab_gen.protocol.events import EndEvent
    from minilab_gen.protocol.jobs import JobView

_LISTED: Final = 8
"""Entries of a setting that are shown one by one."""

_SHOWN: Final = 60
"""Characters of one that is an object or text."""


@click.command(
    epilog="\b\nExample:\n  minilab-client status 4f2a",
)
@click.argument("job", type=parameters.job_id)
@click.option("--utc", is_flag=True, help="Show times in UTC. Default: local time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@redis_url_option
@pass_settings
def status(settings: ClientSettings, job: str, utc: bool, as_json: bool) -> None:
    """Show where JOB stands. The exit code is 0 whatever its state is, once it is known."""
    from minilab_client.prompt_texts import PromptTexts
    from minilab_gen.protocol.details import details
    from minilab_gen.protocol.endings import settle
    from minilab_gen.protocol.jobs import view

    with settings.connect() as connection:
        settle(connection, job)  # a job that waited longer than its ttl has expired, though no worker has said so
        found = view(connection, job)
        (known,) = details(connection, [job])
        count = known.prompt_tokens or len(known.first_ids)
        prompt = PromptTexts(connection).beginning(found.model, known.first_ids, count)
        asked = _settings(connection, job)
    now = datetime.now(UTC)
    speed = None if found.state == "queued" else known.tokens_per_second(found.tokens, now)
    if as_json:
        write_json(_as_json(found, known, prompt, speed) | {"settings": asked})
        return
    lines = (
        _lines(found) | _prompt_line(prompt, known) | _settings_line(asked) | _time_lines(known, now, speed, utc=utc)
    )
    for name, value in lines.items():
        if value is not None:
            write(f"{name:<8} {value}\n")


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


def _settings(connection: redis.Redis, job: str) -> dict[str, Any] | None:
    """What the job asks beside its prompt, as its payload has it; None where its record cannot be read."""
    from minilab_gen.protocol.jobs import fetch, request_of

    try:
        payload = request_of(fetch(connection, job)).to_payload()
    except MiniLabError:
        return None
    return {name: value for name, value in payload.items() if name != "prompt"}


def _settings_line(asked: dict[str, Any] | None) -> dict[str, object]:
    """The settings that are not at their defaults; long lists by their lengths."""
    default = GREEDY.to_payload()
    parts = [
        f"{name} {_short(value)}"
        for name, value in (asked or {}).items()
        if name == "max_new_tokens" or (value and value != default.get(name))
    ]
    return {"settings": ", ".join(parts) or None}


def _short(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str | dict):
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return text if len(value) <= _LISTED else f"of {len(value)}"


def _times(known: JobDetails) -> dict[str, datetime | None]:
    return {"created": known.created, "started": known.started, "ended": known.ended}


def _prompt_line(prompt: str | None, known: JobDetails) -> dict[str, object]:
    from minilab_client.prompt_texts import shown_prompt

    count = "" if prompt is None or known.prompt_tokens is None else f"  ({known.prompt_tokens} tokens)"
    text = shown_prompt(prompt, known.prompt_tokens)
    return {"prompt": None if text is None else f"{text}{count}"}


def _time_lines(known: JobDetails, now: datetime, speed: float | None, *, utc: bool) -> dict[str, object]:
    times = {name: moment and shown(moment, now, utc=utc) for name, moment in _times(known).items()}
    return {**times, "speed": None if speed is None else f"{speed:.0f} tokens/s"}


def _lines(found: JobView) -> dict[str, object]:
    from minilab_client.follow import reason_to_wait

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
