"""The commands ``minilab-worker redis start | stop | status``, for the private server of this user."""

from __future__ import annotations

import json

import click

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import embedded
from minilab_gen.protocol.address import redis_url
from minilab_gen.protocol.connection import masked_url

NO_REDIS = 4
"""The exit code that all our programs give when there is no Redis."""


class _RedisGroup(click.Group):
    """Turns the one error that every command here may meet into a line and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except RedisUnavailableError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(NO_REDIS)


@click.group("redis", cls=_RedisGroup)
def redis_group() -> None:
    """Start, stop or show your private Redis server.

    Worker and client start it by themselves when MINILAB_REDIS_URL is not set, and share it.
    """
    if address := redis_url():
        shown = masked_url(address)
        click.echo(f"note: MINILAB_REDIS_URL is set, so worker and client use {shown}, not this server.", err=True)


@redis_group.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def start(as_json: bool) -> None:
    """Start the server, or find it running. Its data are where it left them."""
    embedded.start()
    _show(embedded.status(), as_json)


@redis_group.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stop(as_json: bool) -> None:
    """Stop the server. Its data stay on disk."""
    stopped = embedded.stop()
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        data = embedded.status().data  # which a user who wants to be rid of them has to find
        click.echo(f"The private Redis {'has stopped' if stopped else 'was not running'}. Its folder: {data}")


@redis_group.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the server without starting it. Exit code 4 when it does not run."""
    found = embedded.status()
    _show(found, as_json)
    if not found.running:
        ctx.exit(NO_REDIS)


def _show(found: embedded.EmbeddedStatus, as_json: bool) -> None:
    fields = {
        "running": found.running,
        "pid": found.pid,
        "version": found.version,
        "socket": str(found.socket),
        "data": str(found.data),
        "binary": None if found.binary is None else str(found.binary),
    }
    if as_json:
        click.echo(json.dumps(fields))
        return
    if not found.running:
        state = "is not running"
    else:
        state = f"runs as process {found.pid}" if found.version else f"is starting or ending as process {found.pid}"
    click.echo(f"The private Redis {state}.")
    for name in ("version", "socket", "data", "binary"):
        click.echo(f"  {name:<8} {fields[name] or '-'}")
