"""``minilab-client submit``: put one job into the queue, or one for each of several answers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode
from minilab_client.given_text import STANDARD_INPUT, read_prompt
from minilab_client.job_options import (
    max_queued_option,
    model_option,
    n_option,
    priority_option,
    template_kwargs_option,
    timeout_option,
    wait_option,
)
from minilab_client.output import say
from minilab_client.sampling_options import sampling_options
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.model_settings import check_settings
from minilab_gen.protocol.keys import Priority
from minilab_gen.request import DEFAULT_CHAT_TOKENS, DEFAULT_MAX_NEW_TOKENS, GenerationRequest
from minilab_gen.text.chat import Conversation

if TYPE_CHECKING:
    import redis

    from minilab_gen.protocol.submission import Submission


@dataclass(frozen=True, slots=True)
class _NewJob:
    """What the command line asks for, each part within its own rules."""

    prompt: str | tuple[int, ...] | Conversation
    sampling: Mapping[str, object]
    """The settings that were given."""
    submission: Submission
    n: int
    """Answers to give."""

    def __post_init__(self) -> None:
        # Before Redis is asked for the model's tokenizer and limits.
        default = DEFAULT_CHAT_TOKENS if isinstance(self.prompt, Conversation) else DEFAULT_MAX_NEW_TOKENS
        check_settings(self.sampling, default)
        if isinstance(self.prompt, tuple):
            GenerationRequest(self.prompt)

    def send(self, connection: redis.Redis) -> tuple[str, GenerationRequest]:
        """Check against the model card and enqueue; the id and the first answer's request as it stands in the queue."""
        from minilab_gen.api import build_request
        from minilab_gen.protocol.groups import requests_of
        from minilab_gen.protocol.submission import enqueue_answers

        request = build_request(connection, self.prompt, self.sampling, self.submission.model)
        return enqueue_answers(connection, requests_of(request, self.n), self.submission), request

    @property
    def draws_seed(self) -> bool:
        return "seed" not in self.sampling

    def seed_of(self, request: GenerationRequest) -> int | None:
        """The seed where it matters or was given."""
        return None if self.draws_seed and request.settings.is_greedy else request.settings.seed


@click.command(
    epilog="\b\nExamples:"
    '\n  minilab-client submit "Phileas Fogg" --max-new-tokens 40 --temperature 0.8 --follow'
    "\n  minilab-client submit -f prompt.txt"
    "\n  minilab-client submit --ids 5,12,7"
    "\n  minilab-client submit --chat 'What is a KV cache?' --model SmolLM2-135M-Instruct --follow",
)
@click.argument("words", metavar="[TEXT]", nargs=-1)
@click.option("--ids", type=parameters.token_ids, metavar="ID,ID,...", help="Token ids instead of TEXT.")
@click.option(
    "--chat",
    "chats",
    is_flag=True,
    help='TEXT is what a user says, or a conversation in JSON: [{"role": "user", "content": "..."}, ...].',
)
@click.option("--system", metavar="TEXT", help="With --chat: system message, instructions to the model.")
@click.option(
    "--tools",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --chat: what the model may call, a JSON list in the form that its template takes.",
)
@template_kwargs_option
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="A file that holds TEXT.",
)
@sampling_options(f"{DEFAULT_MAX_NEW_TOKENS}, with --chat {DEFAULT_CHAT_TOKENS}", logprobs=True)
@click.option("--job-id", type=parameters.job_id, metavar="JOB", help="The id to give the job. Default: a new one.")
@n_option
@timeout_option
@click.option(
    "--ttl",
    type=parameters.whole_number,
    metavar="SECONDS",
    envvar="MINILAB_TTL",
    show_envvar=True,
    help="How long the job may wait for a worker. Default: for ever.",
)
@priority_option("normal")
@model_option
@max_queued_option("Refuse the job when N or more already wait. Default: no bound.")
@click.option("--follow", "follows", is_flag=True, help="Print the text as it comes; the job id goes to stderr.")
@wait_option("With --follow: read for so long at most. Default: to the end of the job")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@redis_url_option
@pass_settings
def submit(  # noqa: PLR0913, PLR0917 - click passes one argument for each option
    settings: ClientSettings,
    words: tuple[str, ...],
    ids: tuple[int, ...] | None,
    chats: bool,
    system: str | None,
    tools: Path | None,
    template_kwargs: Any,
    file: Path | None,
    job_id: str | None,
    n: int,
    timeout: int,
    ttl: int | None,
    priority: Priority,
    model: str,
    max_queued: int | None,
    follows: bool,
    wait: float | None,
    as_json: bool,
    sampling: Mapping[str, object],
) -> ExitCode:
    """Put a job into the queue: continue TEXT, the text in FILE, or --ids. Prints the job id.

    With --n above 1, a group of jobs is submitted and its id printed: `tail`, `result`, `status`, `cancel`, `verify`
    and `retry` take it for all of its jobs. These are named ID-0, ID-1, ... and have the seeds --seed, --seed + 1, ...,
    with 0 after the largest.

    Standard input is read where TEXT is -, or where nothing is given and it is no terminal. With --chat the model
    answers TEXT, in the form that its own chat template gives a conversation; `minilab-client chat` keeps one going.
    """
    from minilab_client.submitted import follow_submitted, say_cut, say_unserved
    from minilab_gen.protocol.groups import job_ids_of
    from minilab_gen.protocol.submission import Submission

    if wait is not None and not follows:
        raise click.UsageError("--wait goes with --follow")
    prompt = _prompt(words, file, ids, chats)
    if isinstance(prompt, Conversation):
        prompt = prompt.told(system) if system is not None else prompt
        prompt = prompt.with_extras(_read_tools(tools), template_kwargs)
    else:
        _check_plain({"--system": system, "--tools": tools, "--chat-template-kwargs": template_kwargs})
    new = _NewJob(prompt, sampling, Submission(model, job_id, priority, timeout, ttl, max_queued), n)
    with settings.connect() as connection:
        submitted, request = new.send(connection)
        _tell(submitted, request, new, follows, as_json)
        if "max_new_tokens" in sampling:
            say_cut(connection, request, model)
        if follows:
            return follow_submitted(connection, submitted, job_ids_of(submitted, n), as_json, wait)
        say_unserved(connection, job_ids_of(submitted, n)[0])
    return ExitCode.DONE


def _prompt(
    words: tuple[str, ...], file: Path | None, ids: tuple[int, ...] | None, chats: bool
) -> str | tuple[int, ...] | Conversation:
    if ids is not None:
        given = "--chat" if chats else "--file" if file else "TEXT"
        if words or file or chats:
            raise click.UsageError(f"give either {given} or --ids, not both")
        return ids
    text = _text(words, file)
    return Conversation.from_text(text) if chats else text


def _check_plain(given: Mapping[str, object]) -> None:
    """Options of a chat where there is none."""
    for option, value in given.items():
        if value is not None:
            raise click.UsageError(f"{option} goes with --chat")


def _read_tools(file: Path | None) -> Any:
    if file is None:
        return None
    try:
        return json.loads(read_prompt(file))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--tools {file} must be JSON: {error}") from error


def _text(words: tuple[str, ...], file: Path | None) -> str:
    if len(words) > 1:
        quoted = f"minilab-client submit {shlex.quote(' '.join(words))}"
        raise click.UsageError(f"TEXT must be one argument, got {len(words)}; put quotes around it: {quoted}")
    if file is not None:
        if words:
            raise click.UsageError("give either TEXT or --file, not both")
        return read_prompt(file)
    if not words:
        return _piped_text()
    (text,) = words
    if text == "-":
        return read_prompt(STANDARD_INPUT)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that were no UTF-8
        raise click.UsageError(f"TEXT must be UTF-8, got another byte at position {error.start}") from error
    return text


def _piped_text() -> str:
    """What comes through a pipe to a command that was given nothing else. A terminal is not read."""
    ways = "give TEXT, or - to read it from standard input, or --file, or --ids"
    if sys.__stdin__ is None or sys.stdin.isatty():
        raise click.UsageError(ways)
    text = read_prompt(STANDARD_INPUT)
    if not text:
        raise click.UsageError(f"{ways}; nothing came from standard input")
    return text


def _tell(job_id: str, request: GenerationRequest, new: _NewJob, follows: bool, as_json: bool) -> None:
    """Say which job or group it is, and the seed that was drawn for it."""
    from minilab_client.submitted import tell_submitted
    from minilab_gen.protocol.groups import job_ids_of, seed_of

    seed = new.seed_of(request)
    tell_submitted(job_id, job_ids_of(job_id, new.n), follows, as_json, model=new.submission.model, seed=seed)
    if new.draws_seed and seed is not None and not as_json:
        say(f"seed {seed}" if new.n == 1 else f"seeds {seed} to {seed_of(seed, new.n - 1)}")
