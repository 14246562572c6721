"""``minilab-client status``: one job as it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode
from minilab_client.output import write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_client.times import shown

if TYPE_CHECKING:
    import redis

    from minilab_gen.protocol.details import JobDetails
    from minilab_gen.protocol.events import EndEvent
    from minilab_gen.protocol.jobs import JobView


@click.command(
    epilog="\b\nExample:\n  minilab-client status 4f2a",
)
@click.argument("job", type=parameters.job_id)
@click.option("--utc", is_flag=True, help="Show times in UTC. Default: local time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@redis_url_option
@pass_settings
def status(settings: ClientSettings, job: str, utc: bool, as_json: bool) -> ExitCode:
    """Show where JOB stands. The exit code is 0 whatever its state is, once it is known.

    Of a group, each job is shown. The group has started when one of its jobs has, and is over when all of them are;
    it has then failed, or was cancelled, if one of them has or was.
    """
    from minilab_client.group_status import show_group
    from minilab_gen.protocol.groups import jobs_named

    with settings.connect() as connection:
        job_ids = jobs_named(connection, job)
        if len(job_ids) > 1:
            return show_group(connection, job, job_ids, utc=utc, as_json=as_json)
        standing = Standing.of(connection, job)
    if as_json:
        write_json(standing.to_json())
    else:
        write_lines(standing.lines(datetime.now(UTC), utc=utc))
    return ExitCode.DONE


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

    @classmethod
    def of(cls, connection: redis.Redis, job_id: str) -> Self:
        """Raises UnknownJobError."""
        from minilab_client.prompt_texts import PromptTexts
        from minilab_gen.protocol.details import details
        from minilab_gen.protocol.endings import settle
        from minilab_gen.protocol.jobs import view

        settle(connection, job_id)  # a job that waited longer than its ttl has expired, though no worker has said so
        found = view(connection, job_id)
        (known,) = details(connection, [job_id])
        count = known.prompt_tokens or len(known.first_ids)
        return cls(found, known, PromptTexts(connection).beginning(found.model, known.first_ids, count))

    def speed(self, now: datetime) -> float | None:
        """Tokens per second; None for a job that waits."""
        return None if self.found.state == "queued" else self.known.tokens_per_second(self.found.tokens, now)

    def to_json(self) -> dict[str, Any]:
        return _as_json(self.found, self.known, self.prompt, self.speed(datetime.now(UTC)))

    def lines(self, now: datetime, *, utc: bool) -> dict[str, object]:
        of_prompt = _prompt_line(self.prompt, self.known)
        return _lines(self.found) | of_prompt | _time_lines(self.known, now, self.speed(now), utc=utc)


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
    return end.reason if end.stop_text is None else f"{end.reason} ({json.dumps(end.stop_text, ensure_ascii=False)})"
