"""What is said about a job that was just submitted, and reading it from its first token. It must not submit any."""

from __future__ import annotations

from typing import Any

import redis

from minilab_client.exit_codes import ExitCode
from minilab_client.follow import JsonPrinter, TextPrinter, WaitingNotes, follow
from minilab_client.output import flush, say, write, write_json
from minilab_gen.protocol.jobs import view


def tell_submitted(job_id: str, follows: bool, as_json: bool, **details: Any) -> None:
    """Print the id of a new job, or where its text follows on stdout, say it; the details are for JSON only."""
    if as_json:
        write_json({"event": "submitted", "job_id": job_id, **details})
    elif follows:
        say(f"job {job_id}")
    else:
        write(f"{job_id}\n")


def follow_submitted(connection: redis.Redis, job_id: str, as_json: bool, wait: float | None) -> ExitCode:
    """Show the events of a new job, to the end; the exit code for how it ended. Raises NotEndedError after ``wait``."""
    flush()
    notes = WaitingNotes()
    now = view(connection, job_id)
    if not now.workers_alive:  # said at once; that others are before it can wait until it really takes a while
        notes(now)
    return follow(connection, job_id, 0, JsonPrinter() if as_json else TextPrinter(), notes, wait)
