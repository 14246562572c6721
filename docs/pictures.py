"""Makes docs/session.svg and docs/watch.svg of real runs, so that they stay true: what programs print is not made up.

It must not know how anything works inside: it starts a private Redis and workers, and keeps what commands print.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.rule import Rule
from rich.text import Text
from rq import Worker

from minilab_gen import cancel, submit
from minilab_gen.protocol import embedded
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.jobs import queue_of, view
from minilab_gen.protocol.keys import DEFAULT_MODEL, PRIORITIES, queue_names
from minilab_gen.protocol.streams import published_tokens

HERE: Final = Path(__file__).parent
COLUMNS: Final = 100

FONTS: Final = "'Fira Code', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
FORMAT: Final = (
    re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    .replace("Fira Code, monospace", FONTS)
    .replace('-matrix">', '-matrix" xml:space="preserve">')
)
"""rich's own, but that it fetches no fonts from elsewhere, and that no program leaves out the spaces before a word."""

PROMPT: Final = "Phileas Fogg"
SUBMIT: Final = f'minilab-client submit "{PROMPT}" --max-new-tokens 95 --follow'
FIRST_WORDS: Final = 60
"""Characters of the answer after which the worker is killed."""

LOAD_SECONDS: Final = 50
SCREEN_LINES: Final = 30
REASONS: Final = (b"mlength", b"mcancelled", b"mtimeout")
"""How the jobs of the load end, as they stand in a frame behind their colour."""


@contextmanager
def private_redis() -> Iterator[None]:
    """A server of the pictures' own, gone with its data at the end; the programs below find it by themselves."""
    with tempfile.TemporaryDirectory(prefix="minilab-pictures-") as home:
        os.environ |= {"MINILAB_HOME": home, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        os.environ.pop("MINILAB_REDIS_URL", None)
        embedded.start()
        try:
            yield
        finally:
            embedded.stop()


@contextmanager
def worker(*options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that has just become ready; what it says is kept for reading."""
    with closing(connect()) as connection:
        command = [sys.executable, "-m", "minilab_worker.cli", "--quiet", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while not any(f"-{process.pid}-" in name for name in Worker.all_keys(connection)):
                    if process.poll() is not None:
                        sys.exit(f"a worker ended with exit code {process.returncode}")
                    time.sleep(0.05)
                yield process
            finally:
                process.terminate()


def draw_session() -> None:
    """A job's worker is killed in the middle of a sentence, another goes on, and the answer is what it always is."""
    with worker() as one, worker() as other, follower() as client, closing(connect()) as connection:
        assert client.stdout is not None
        said = client.stdout.readline()
        job_id = said.split()[1]
        said += client.stdout.read(FIRST_WORDS)
        holder = view(connection, job_id).worker or ""
        victim, heir = (one, other) if f"-{one.pid}-" in holder else (other, one)
        victim.kill()
        victim.wait()
        tokens, end = published_tokens(connection, job_id)
        if end is not None:
            sys.exit("the job was quicker than the kill; run this again")
        said += client.stdout.read()
        assert heir.stderr is not None
        took_over = heir.stderr.readline()
        fetched = printed_by(f"minilab-client result {job_id} | md5sum")
        repeated = printed_by(f"{SUBMIT} 2>/dev/null | md5sum")
    before = said.index("\n") + 1 + len("".join(token.text for token in tokens))
    console = recorder()
    show_command(console, SUBMIT)
    console.print(Text.assemble(said[:before], (said[before:], "green")), end="")
    show_command(console, f"minilab-client result {job_id} | md5sum")
    console.print(fetched, end="")
    show_command(console, f"{SUBMIT} 2>/dev/null | md5sum", "again")
    console.print(repeated, end="")
    console.print(Rule("meanwhile, in another terminal", style="bright_black"))
    show_command(console, f"kill -9 {victim.pid}", "one of two workers; the other goes on, in green")
    console.print(took_over, end="")
    save(console, "session", "A job outlives its worker")


def follower() -> subprocess.Popen[str]:
    """Who submits the job and prints its text as it comes."""
    return subprocess.Popen(
        ["/bin/bash", "-c", SUBMIT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )


def printed_by(command: str) -> str:
    return subprocess.run(["/bin/bash", "-c", command], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout


def show_command(console: Console, command: str, remark: str = "") -> None:
    console.print(Text.assemble(("$ ", "cyan"), (command, "bold"), (f"  # {remark}" if remark else "", "dim")))


def draw_watch() -> None:
    """A busy minute, as `minilab-client watch` shows it."""
    places = ("--max-batch", "16", "--threads", "1")
    with worker(*places), worker(*places):
        screen, terminal = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", SCREEN_LINES, COLUMNS, 0, 0))
        command = ["minilab-client", "watch"]
        variables = {**os.environ, "TERM": "xterm-256color"}
        with subprocess.Popen(command, stdin=terminal, stdout=terminal, env=variables) as watch:
            received = b""
            for _ in load():
                while select.select([screen], [], [], 0)[0]:
                    received += os.read(screen, 65_536)
            watch.send_signal(signal.SIGTERM)
    late = received.split(b"\x1b[H")[-15:-1]  # whole ones with most of a minute in their plot
    frame = max(late, key=lambda frame: sum(reason in frame for reason in REASONS))
    console = recorder()
    for line in AnsiDecoder().decode(re.sub(r"\x1b\[[KJ]|\r", "", frame.decode())):
        console.print(line)
    save(console, "watch", "minilab-client watch")


def load() -> Iterator[None]:
    """Jobs of all priorities, as many as keep some waiting; some are cancelled, some have less time than they need."""
    began, number = time.monotonic(), 0
    with closing(connect()) as connection:
        while time.monotonic() < began + LOAD_SECONDS:
            waiting = sum(queue_of(connection, name).count for name in queue_names(DEFAULT_MODEL))
            for _ in range(max(0, 12 - waiting)):
                number += 1
                timeout = 1 if number % 20 == 7 else 60
                submit(
                    PROMPT,
                    max_new_tokens=110,
                    temperature=0.8,
                    seed=number,
                    priority=PRIORITIES[number % 3],
                    timeout=timeout,
                    job_id=f"verne-{number:04}",
                )
                if number % 12 == 0:
                    cancel(f"verne-{number - 20:04}" if number > 20 else "verne-0001")
            time.sleep(0.2)
            yield


def recorder() -> Console:
    return Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, highlight=False, markup=False)


def save(console: Console, name: str, title: str) -> None:
    file = HERE / f"{name}.svg"
    file.write_text(console.export_svg(title=title, code_format=FORMAT, unique_id=name), encoding="utf-8")
    print(file)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["session", "watch"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # in order, so that no server is left behind
    with private_redis():
        for name in wanted:
            {"session": draw_session, "watch": draw_watch}[name]()
