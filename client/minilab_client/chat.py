"""``minilab-client chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from minilab_client.exit_codes import ExitCode, report
from minilab_client.job_options import model_option, priority_option, template_kwargs_option, timeout_option
from minilab_client.output import flush, say, write
from minilab_client.sampling_options import sampling_options
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.errors import RequestError
from minilab_gen.protocol.keys import Priority
from minilab_gen.request import DEFAULT_CHAT_TOKENS
from minilab_gen.utf8_text import decoded


@click.command(
    epilog="\b\nExamples:"
    "\n  minilab-client chat --model SmolLM2-135M-Instruct"
    "\n  minilab-client chat --model SmolLM2-135M-Instruct --system 'You answer briefly.' --temperature 0.7",
)
@model_option
@click.option("--system", metavar="TEXT", help="System message: instructions to the model.")
@template_kwargs_option
@sampling_options(str(DEFAULT_CHAT_TOKENS))
@timeout_option
@priority_option("normal")
@redis_url_option
@pass_settings
def chat(
    settings: ClientSettings,
    model: str,
    system: str | None,
    template_kwargs: Any,
    timeout: int,
    priority: Priority,
    sampling: Mapping[str, object],
) -> ExitCode:
    """Talk with a model: each line is answered with all that was said before in mind.

    Ctrl-C stops an answer, and the conversation goes on with what there is of it; Ctrl-D ends the program. Where the
    conversation outgrows the model's context, its oldest turns are dropped, with a note. Without a terminal,
    each line of standard input is answered in turn, and the exit code is that of the last answer that failed.
    """
    from minilab_client.answering import Answerer
    from minilab_client.dialogue import Dialogue
    from minilab_gen.protocol.submission import Submission

    submission = Submission(model, None, priority, timeout)
    is_watched = sys.stdin is not None and sys.stdin.isatty()
    with settings.connect() as connection:
        answerer = Answerer(connection, submission, Dialogue(system, template_kwargs), sampling)
        if is_watched:
            say(f"{model} listens; Ctrl-C stops an answer, Ctrl-D ends the conversation")
        code = ExitCode.DONE
        for said in _typed() if is_watched else _piped():
            try:
                ended = answerer.answer(said, goes_on=is_watched)
            except RequestError as error:  # of this line; the next may be better
                ended = report(error)
            code = code if ended == ExitCode.DONE else ended
    return ExitCode.DONE if is_watched else code


def _typed() -> Iterator[str]:
    """What a person types, line by line, until Ctrl-D; Ctrl-C drops what was begun."""
    with suppress(ImportError):
        import readline  # noqa: F401 - lets input() edit a line and recall earlier ones
    while True:
        flush()
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            write("\n")
            continue
        if line.strip():
            yield line


def _piped() -> Iterator[str]:
    if sys.__stdin__ is None:
        raise click.UsageError("standard input must be open to read from it what is said")
    for line in sys.stdin.buffer:
        text = decoded(line, "standard input").strip()
        if text:
            yield text
