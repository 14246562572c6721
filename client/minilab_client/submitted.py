"""What is said about a job that was just submitted, and reading it from its first token."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from minilab_client.answers import follow_answers
from minilab_client.exit_codes import ExitCode
from minilab_client.follow import WaitingNotes, reason_to_wait
from minilab_client.output import flush, say, write, write_json
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol.cards import read_card
from minilab_gen.protocol.jobs import view
from minilab_gen.request import GenerationRequest


def tell_submitted(name: str, job_ids: Sequence[str], follows: bool, as_json: bool, **details: Any) -> None:
    """Print the id of a new job or group, or say it where text follows on stdout; the details are for JSON only."""
    if as_json:
        of_group = {"job_ids": list(job_ids)} if len(job_ids) > 1 else {}
        write_json({"event": "submitted", "job_id": name, **details, **of_group})
    elif follows:
        say(f"job {name}" if len(job_ids) == 1 else f"group {name}: jobs {job_ids[0]} to {job_ids[-1]}")
    else:
        write(f"{name}\n")


def follow_submitted(
    connection: redis.Redis, name: str, job_ids: Sequence[str], as_json: bool, wait: float | None
) -> ExitCode:
    """Show the events of a new job or group, to the end; the exit code for how it ended.

    Raises NotEndedError after ``wait`` seconds.
    """
    flush()
    notes = WaitingNotes()
    now = view(connection, job_ids[0])
    if not now.workers_alive:  # said at once; that others are before it can wait until it really takes a while
        notes(now)
    return follow_answers(connection, name, job_ids, as_json, notes, wait)


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
