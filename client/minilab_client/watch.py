"""``minilab-client watch``: the service as it stands, again and again. Read-only."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from minilab_client import parameters
from minilab_client.output import flush, require_reader, say, write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option

if TYPE_CHECKING:
    from minilab_client.watching.gathering import Gatherer

_READER_CHECK = 0.5
"""Seconds after which a program that only waits looks whether its reader is still there."""

_SHORTEST, _LONGEST = 0.1, 3600.0
"""Seconds between two looks: no less than an eye can follow, no more than is worth waiting."""


_LINES_OF_JSON = 50
"""Height of the screen on which the jobs that JSON shows would fit; the figures are of all."""


def _check_interval(_ctx: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not _SHORTEST <= seconds <= _LONGEST:
        raise click.BadParameter(f"must be from {_SHORTEST} to {_LONGEST:.0f}, got {seconds:g}")
    return seconds


@click.command(
    epilog="\b\nExamples:\n  minilab-client watch --interval 0.5\n  minilab-client watch --once --json",
)
@click.option(
    "--interval",
    callback=_check_interval,
    type=parameters.decimal_number,
    default="1",
    metavar="SECONDS",
    help=f"Seconds between two snapshots, {_SHORTEST} to {_LONGEST:.0f}. Default: 1.",
)
@click.option("--model", type=parameters.model_name, metavar="NAME", help="Only this model. Default: all.")
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each snapshot, with the jobs of a screen."
)
@redis_url_option
@pass_settings
def watch(settings: ClientSettings, interval: float, model: str | None, once: bool, as_json: bool) -> None:
    """Watch queues, workers, speed, running jobs and ended jobs; q or Ctrl-C exits.

    Where stdout is no terminal: one line of figures for each snapshot.
    """
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from minilab_client.watching.gathering import Gatherer

    title = ", ".join([f"minilab-client watch: {settings.shown_address}", *([f"model {model}"] if model else [])])
    with settings.connect() as connection:
        gatherer = Gatherer(connection, model)
        if once:
            _show_once(gatherer, title, as_json=as_json)
            return
        connection.set_retry(Retry(NoBackoff(), 0))  # the next look is the next try, and meanwhile an outage is shown
        if _has_screen() and not as_json:
            from minilab_client.watching import live  # rich is slow to import, and a screen needs a Unix

            live.show(gatherer, interval, title)
        else:
            _show_lines(gatherer, interval, as_json=as_json)


def _has_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown") and sys.platform != "win32"


def _show_once(gatherer: Gatherer, title: str, *, as_json: bool) -> None:
    from rich.console import Console  # slow to import, and no other command needs it

    from minilab_client.watching.drawing import View
    from minilab_client.watching.layout import Layout

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not as_json:
        console.print(View(gatherer.look(Layout(console.height)), title))
    else:
        _write_look(gatherer, as_json=as_json)


def _show_lines(gatherer: Gatherer, interval: float, *, as_json: bool) -> None:
    import redis

    is_away = False
    while True:
        try:
            _write_look(gatherer, as_json=as_json)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if not is_away:
                say(f"Redis is away, asking again: {error}")
            is_away = True
        else:
            if is_away:
                say("Redis is back")
            is_away = False
        flush()
        _pause(interval)


def _write_look(gatherer: Gatherer, *, as_json: bool) -> None:
    from minilab_client.watching.layout import Layout
    from minilab_client.watching.snapshot import figures, line

    if as_json:
        write_json(figures(gatherer.look(Layout(height=_LINES_OF_JSON))))
    else:
        write(line(gatherer.look(Layout(height=1))) + "\n")


def _pause(seconds: float) -> None:
    """Wait, as long as stdout has a reader."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        require_reader()
        time.sleep(min(left, _READER_CHECK))
