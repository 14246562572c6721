"""The jobs of a group as they stand, and what that makes of the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import redis

from minilab_client.answers import worst
from minilab_client.exit_codes import ExitCode, report
from minilab_client.output import flush, write_json, write_table
from minilab_client.standing import Standing, write_lines
from minilab_gen.errors import UnknownJobError
from minilab_gen.protocol.groups import state_of_all

_HEADINGS = ("JOB", "STATE", "SEED", "TOKENS", "TOKENS/S", "WORKER", "END")


def show_group(connection: redis.Redis, group_id: str, job_ids: Sequence[str], *, utc: bool, as_json: bool) -> ExitCode:
    """Show those of its jobs that are still known, and report the others."""
    jobs, codes = [], []
    for job_id in job_ids:
        try:
            jobs.append(Standing.of(connection, job_id))
        except UnknownJobError as error:
            codes.append(report(error))
    if jobs:
        _show(group_id, jobs, utc=utc, as_json=as_json)
    flush()
    return worst(codes)


def _show(group_id: str, jobs: Sequence[Standing], *, utc: bool, as_json: bool) -> None:
    state = state_of_all([job.found.state for job in jobs])
    tokens = sum(job.found.tokens for job in jobs)
    if as_json:
        in_full = [job.to_json() for job in jobs]
        write_json(
            {"job_id": group_id, "state": state, "model": jobs[0].found.model, "tokens": tokens, "jobs": in_full}
        )
        return
    now = datetime.now(UTC)
    but_seed = {name: value for name, value in (jobs[0].asked or {}).items() if name != "seed"}
    of_first = replace(jobs[0], asked=but_seed).lines(now, utc=utc)
    own = {"group": group_id, "state": state}
    shared = {name: of_first[name] for name in ("waiting", "model", "workers", "prompt", "settings", "created")}
    write_lines(own | shared | {"tokens": tokens})
    write_table(_HEADINGS, [_row(job, now, utc=utc) for job in jobs])


def _row(job: Standing, now: datetime, *, utc: bool) -> tuple[object, ...]:
    found, speed = job.found, job.speed(now)
    shown = None if speed is None else f"{speed:.0f}"
    asked = job.asked or {}
    seed = asked.get("seed") if asked.get("temperature") else None
    end = job.lines(now, utc=utc)["end"]
    return (found.job_id, found.state, seed, found.tokens, shown, found.worker, end)
