"""``minilab-worker demo``: a worker, a job, its tokens as they come; then everything is stopped.

It uses what users use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Final, Self

import click

from minilab_gen import TokenEvent, submit, tail
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol import embedded
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.jobs import workers_alive
from minilab_gen.protocol.keys import DEFAULT_MODEL, queue_name
from minilab_worker.extra import check_extra

_PROMPT: Final = "Phileas Fogg"
_JOBS: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    ("greedy", {}),
    ("temperature 0.8, top-p 0.9, seed 7", {"temperature": 0.8, "top_p": 0.9, "seed": 7}),
)
_TOKENS: Final = 60
_READING_PAUSE: Final = 0.03  # seconds a token: the model is faster than the eye
_STOP_SECONDS: Final = 10.0  # for the worker to exit; what it might lose goes with its Redis


class _StopSignals:
    """SIGINT, SIGTERM and SIGHUP, put off while something is started or stopped, so that nothing is left half done."""

    def __init__(self) -> None:
        self._came: int | None = None
        self._may_raise = False

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background job
                signal.signal(number, self._note)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Leave the handlers in place: until the process exits there is nothing to interrupt any more.

        What failed after a signal failed because of it: Ctrl-C reaches a Redis, too, that is just being started.
        """
        if self._came is not None and isinstance(error, MiniLabError):
            raise SystemExit(128 + self._came) from error

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """A block that a signal ends, also one that came before it. Raises SystemExit."""
        self._may_raise = True
        try:
            if self._came is not None:
                self._raise(self._came)
            yield
        finally:
            self._may_raise = False

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came = number
        if self._may_raise:
            self._raise(number)

    def _raise(self, number: int) -> None:
        self._may_raise = False  # a second one shall not interrupt what the first has begun
        raise SystemExit(128 + number)  # as a shell counts it


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """A folder of the demonstration's own, and none of the user's settings, which might name another model or Redis."""
    for name in [name for name in os.environ if name.startswith("MINILAB_")]:
        del os.environ[name]
    home = tempfile.mkdtemp(prefix="minilab-demo-")
    os.environ["MINILAB_HOME"] = home
    try:
        yield
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _private_redis() -> Iterator[None]:
    try:
        embedded.start()
        yield
    finally:
        embedded.stop()


@contextlib.contextmanager
def _worker() -> Iterator[subprocess.Popen[bytes]]:
    """A worker process. In a session of its own: Ctrl-C is for the demonstration, which then stops it in order."""
    command = [sys.executable, "-m", "minilab_worker", "--quiet", "--grace", "0"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_serves(worker: subprocess.Popen[bytes]) -> None:
    with closing(connect()) as connection:
        while not workers_alive(connection, queue_name(DEFAULT_MODEL)):
            if worker.poll() is not None:
                raise MiniLabError(f"the worker exited with code {worker.returncode} before it served a job")
            time.sleep(0.05)


def _follow(label: str, settings: dict[str, float]) -> None:
    start = time.monotonic()
    job_id = submit(_PROMPT, max_new_tokens=_TOKENS, **settings)  # type: ignore[arg-type]
    click.echo(f"\n$ minilab-client submit {_PROMPT!r} --follow    # {label}; job {job_id}")
    click.echo(_PROMPT, nl=False)
    first, tokens = 0.0, 0
    with closing(tail(job_id)) as events:
        for event in events:
            if isinstance(event, TokenEvent):
                first = first or time.monotonic() - start
                tokens += 1
            click.echo(event.text, nl=False)
            sys.stdout.flush()
            if sys.stdout.isatty():
                time.sleep(_READING_PAUSE)
    click.echo(f"\n  ({tokens} tokens, the first after {first * 1000:.0f} ms)")


@click.command("demo")
def demo() -> None:
    """Show two answers grow token by token, and stop everything again.

    It starts a private Redis and a worker of its own, which know nothing of those that you may have.
    """
    check_extra()  # before there is a private Redis to miss, whose advice would be half of what is needed
    try:
        with _StopSignals() as signals, _environment():
            _show(signals)
    except SystemExit:
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            click.echo("\nInterrupted. Worker and Redis are stopped again.", err=True)
        raise
    worker, client = (_as_typed(name) for name in ("minilab-worker", "minilab-client"))
    click.echo(f"\nWorker and Redis are stopped again. To serve for yourself: {worker}, and {client} --help.")


def _as_typed(program: str) -> str:
    """How a user calls a program installed beside this one: in a .venv that `make` has made it is on no PATH."""
    path = Path(sys.executable).with_name(program)
    found = shutil.which(program)
    return program if found and path.exists() and path.samefile(found) else os.path.relpath(path)


def _show(signals: _StopSignals) -> None:
    with signals.allowed():
        click.echo("Starting a private Redis and a worker, which loads the model and checks that it is exact ...")
    with _private_redis(), _worker() as worker, signals.allowed():
        _wait_until_it_serves(worker)
        for label, settings in _JOBS:
            _follow(label, settings)
