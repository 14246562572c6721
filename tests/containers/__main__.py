"""``python -m containers``: build, run, break, check, take away."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from containers import engine
from containers.course import Course
from containers.project import Project, find_compose, version_of


def _teller() -> Callable[[str], None]:
    """Something that prints lines with the seconds since now."""
    began = time.monotonic()
    return lambda line: click.echo(f"[{time.monotonic() - began:5.1f} s] {line}")


@click.command()
@click.option("--compose", envvar="COMPOSE", help='"docker compose" or "docker-compose"; by default what is there.')
def main(compose: str | None) -> None:
    """Run the containers as a user does, break things, and check that no token is missing or doubled.

    Without Docker it says so, and exits with code 0.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is taken away
    why_not = engine.complaint()
    kind = compose or find_compose()
    if why_not is None and kind is None:
        why_not = "neither `docker compose` nor `docker-compose` is here"
    if why_not is not None or kind is None:
        click.echo(f"compose-test: SKIPPED, nothing was checked: {why_not}")
        return
    version = version_of(kind)
    if version is None:
        raise click.UsageError(f"COMPOSE must be a command that runs, got {kind!r}")
    click.echo(f"{kind} {version}, {os.cpu_count()} cores")
    sys.exit(0 if _is_sound(kind) else 1)


def _is_sound(kind: str) -> bool:
    """Whether all went well and nothing is left over. Raises what the course raises."""
    say = _teller()
    # Few slots and one thread: two workers, each with some of forty jobs, on whatever machine.
    project = Project(kind, MINILAB_MAX_BATCH="8", MINILAB_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="minilab-containers-") as folder, project:
        model = Path(folder, "model")
        model.mkdir()
        try:
            Course(project, model, say).run()
        except BaseException:
            click.echo(project.attempt("logs", "--no-color", "--tail", "40").stdout, err=True)
            raise
    left = project.left_over()
    say(f"taken away; left over: {', '.join(left) or 'nothing'}")
    return not left


if __name__ == "__main__":
    main()
