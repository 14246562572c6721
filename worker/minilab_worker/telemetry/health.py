"""``minilab-worker health``: whether the worker of this container or machine holds its lease.

A worker that is started again has another name than before, so that it is not taken
for its predecessor, whose lease may still be there. It writes its name into a file, where the check finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from minilab_gen.errors import MiniLabError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect


def lease_file_option(*, required: bool = False) -> Callable[..., Any]:
    """The option that the worker and the check share."""
    return click.option(
        "--lease-file",
        type=click.Path(path_type=Path),
        envvar="MINILAB_LEASE_FILE",
        show_envvar=True,
        required=required,
        help="File that holds the worker's name, for `minilab-worker health`.",
    )


def write_name(lease_file: Path | None, worker: str) -> None:
    """Write a worker's name into its lease file, if it is to have one. Raises MiniLabError where that cannot be."""
    if lease_file is None:
        return
    try:
        lease_file.write_text(worker, encoding="utf-8")
    except OSError as error:
        raise MiniLabError(f"--lease-file must be a file that can be written, got {lease_file}: {error}") from error


@click.command()
@lease_file_option(required=True)
@click.option("--redis-url", envvar="MINILAB_REDIS_URL", show_envvar=True, help="URL of the worker's Redis server.")
def health(lease_file: Path, redis_url: str | None) -> None:
    """Check that the worker with this lease file holds its lease.

    Exit codes: 0 it does, 1 it does not or there is none, 4 no Redis.
    """
    try:
        worker = lease_file.read_text(encoding="utf-8")
    except OSError as error:
        raise MiniLabError(f"no worker serves here: {error}") from error
    if not worker:
        raise MiniLabError(f"no worker serves here yet: {lease_file} is empty")
    with closing(connect(redis_url)) as connection:
        if not connection.exists(keys.worker_lease(worker)):
            raise MiniLabError(f"{worker} holds no lease: it has exited or is stalled")
    click.echo(f"{worker} holds its lease")
