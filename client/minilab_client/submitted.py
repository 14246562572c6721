"""What is said about a job that was just submitted, and reading it from its first token."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import redis

from minilab_client.exit_codes import ExitCode
from minilab_client.follow import JsonPrinter, TextPrinter, WaitingNotes, follow, reason_to_wait
from minilab_client.output import flush, say, write, write_json
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol.cards import read_card
from minilab_gen.protocol.jobs import view
from minilab_gen.request import GenerationRequest


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


def say_unserved(connection: redis.Redis, *job_ids: str) -> None:
    """Say once for each model that no worker will take new jobs yet; they wait in their queue all the same."""
    with suppress(redis.RedisError, MiniLabError):  # they are submitted, whatever comes now
        views = [view(connection, job_id) for job_id in job_ids]
        for reason in dict.fromkeys(reason_to_wait(now) for now in views if not now.workers_alive):
            if reason is not None:
                say(f"waiting: {reason}")


def say_cut(connection: redis.Redis, request: GenerationRequest, model: str) -> None:
    """Say how many tokens may follow where that are fewer than was asked."""
    try:
        context = read_card(connection, model).context_length
    except (redis.RedisError, MiniLabError):  # it is submitted, whatever comes now
        return
    longest = request.longest_answer(context)
    if longest < request.max_new_tokens:
        prompt = len(request.prompt)
        say(
            f"--max-new-tokens {request.max_new_tokens} is cut to {longest}: the prompt's {prompt} "
            f"token{'' if prompt == 1 else 's'} and the answer must fit the model's context of {context}"
        )
