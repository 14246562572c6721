"""``make demo``: a worker, a job, its tokens as they come; then everything is put away.

It must not know any detail of serving: it uses what users use.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from minilab_gen.startup import INTERRUPTED, Loading

with Loading():
    import click

    from minilab_gen import TokenEvent, submit, tail
    from minilab_gen.errors import MiniLabError
    from minilab_gen.protocol import embedded
    from minilab_gen.protocol.connection import connect
    from minilab_gen.protocol.jobs import workers_alive
    from minilab_gen.protocol.keys import DEFAULT_MODEL, queue_name

_PROMPT: Final = "Phileas Fogg"
_JOBS: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    ("greedy", {}),
    ("temperature 0.8, top-p 0.9, seed 7", {"temperature": 0.8, "top_p": 0.9, "seed": 7}),
)
_TOKENS: Final = 60
_READING_PAUSE: Final = 0.03  # seconds a token: the model is faster than the eye


@contextlib.contextmanager
def _private_redis() -> Iterator[None]:
    """A server of the demonstration's own, gone with its data at the end."""
    with tempfile.TemporaryDirectory(prefix="minilab-demo-") as home:
        os.environ["MINILAB_HOME"] = home
        os.environ.pop("MINILAB_REDIS_URL", None)
        embedded.start()
        try:
            yield
        finally:
            embedded.stop()


@contextlib.contextmanager
def _worker() -> Iterator[None]:
    """A worker process, told to stop at the end."""
    # In a process group of its own: Ctrl-C is for this program, which then ends the worker as always.
    process = subprocess.Popen([sys.executable, "-m", "minilab_worker", "--quiet"], process_group=0)
    try:
        with closing(connect()) as connection:
            while not workers_alive(connection, queue_name(DEFAULT_MODEL)):
                if process.poll() is not None:
                    raise MiniLabError(f"the worker ended with exit code {process.returncode}")
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _follow(label: str, settings: dict[str, float]) -> None:
    start = time.monotonic()
    job_id = submit(_PROMPT, max_new_tokens=_TOKENS, **settings)  # type: ignore[arg-type]
    click.echo(f"\n$ minilab-client submit {_PROMPT!r} --follow    # {label}; job {job_id}")
    click.echo(_PROMPT, nl=False)
    first, tokens = 0.0, 0
    for event in tail(job_id):
        if isinstance(event, TokenEvent):
            first = first or time.monotonic() - start
            tokens += 1
        click.echo(event.text, nl=False)
        sys.stdout.flush()
        if sys.stdout.isatty():
            time.sleep(_READING_PAUSE)
    click.echo(f"\n  ({tokens} tokens, the first after {first * 1000:.0f} ms)")


def main() -> None:
    """Start what is needed, show two jobs, leave nothing running."""
    click.echo("Starting a private Redis and a worker, which loads the model and checks that it is exact ...")
    try:
        with _private_redis(), _worker():
            for label, settings in _JOBS:
                _follow(label, settings)
    except MiniLabError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("\nInterrupted: worker and Redis are stopped.", err=True)
        sys.exit(INTERRUPTED)
    folder = os.path.relpath(Path(sys.executable).parent)  # which is on no PATH, in a .venv that `make` has made
    click.echo(
        "\nWorker and Redis are stopped again. To serve for yourself: "
        f"{folder}/minilab-worker, and {folder}/minilab-client --help."
    )


if __name__ == "__main__":
    main()
