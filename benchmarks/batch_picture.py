"""The picture of a batch on a terminal, interrupted and gone on with: ``python benchmarks/batch_picture.py``.

It must not draw anything itself: a real client works on a real worker, and what its terminal shows is the picture.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Final

import click
from batch_workload import bad_lines, good_lines
from rich.console import Console
from rich.text import Text
from service import private_redis, worker

from minilab_gen.errors import MiniLabError
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import read_card
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, get_tokenizer

WIDTH: Final = 100
"""Columns: what a README shows without scrolling."""

INTERRUPT_AT: Final = 40
"""Per cent that the bar shows at Ctrl-C."""

_WITH_ERRORS: Final = 1
_INTERRUPTED: Final = 130
"""Exit codes of the client."""

_COMMAND: Final = ("batch", "in.jsonl", "--output", "out.jsonl")
_REDRAWN: Final = re.compile(r".*(?:\r|\x1b\[2K)")  # all of a line that was drawn over
_CURSOR: Final = re.compile(r"\x1b\[\?25[lh]")  # the cursor goes, the cursor comes
_PER_CENT: Final = re.compile(rb"(\d+)%")


class Screen:
    """What a program has written to its terminal."""

    def __init__(self) -> None:
        self._master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, WIDTH, 0, 0))
        self._written = b""

    def read(self) -> bool:
        """Take in more; False when the program has closed its terminal."""
        try:
            new = os.read(self._master, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            new = b""
        self._written += new
        return bool(new)

    @property
    def per_cent(self) -> int:
        """Where the bar is."""
        found = _PER_CENT.findall(self._written)
        return int(found[-1]) if found else 0

    @property
    def lines(self) -> list[Text]:
        """What stands there now."""
        text = _CURSOR.sub("", self._written.decode()).replace("\r\n", "\n")
        return [Text.from_ansi(_REDRAWN.sub("", line)) for line in text.rstrip("\n").split("\n")]


def run_client(folder: Path, interrupt_at: int | None) -> list[Text]:
    """Let a client work in a folder, perhaps not to the end; what stands on its terminal then."""
    screen = Screen()
    paths = os.pathsep.join(sys.path)  # what is imported here is imported there, too, wherever that is
    variables = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": paths}
    client = subprocess.Popen(
        [sys.executable, "-m", "minilab_client", *_COMMAND], cwd=folder, stderr=screen.terminal, env=variables
    )
    os.close(screen.terminal)
    told = False
    while screen.read():
        if interrupt_at is not None and not told and screen.per_cent >= interrupt_at:
            client.send_signal(signal.SIGINT)
            told = True
    expected = _WITH_ERRORS if interrupt_at is None else _INTERRUPTED
    if client.wait() != expected:
        raise MiniLabError(f"the client must end with code {expected}, it ended with {client.returncode}")
    return screen.lines


def write_lines(folder: Path, count: int, stop_ids: tuple[int, ...]) -> None:
    """A file in which three lines are bad."""
    good = good_lines(count - 3, count, stop_ids, get_tokenizer())
    contents = [line.content for line in bad_lines(taken="line-0")[:3]] + [line.content for line in good]
    (folder / "in.jsonl").write_bytes(b"\n".join(contents) + b"\n")


@click.command(context_settings={"show_default": True})
@click.option("--lines", type=click.IntRange(min=100), default=2_000, help="Lines of the file.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("docs/batch.svg"), help="The SVG file."
)
def main(lines: int, output: Path) -> None:
    """Draw a batch that is interrupted and goes on.

    Example: python benchmarks/batch_picture.py --output /tmp/batch.svg
    """
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with (
        tempfile.TemporaryDirectory(prefix="minilab-batch-") as name,
        private_redis() as connection,
        worker(connection, BASE_CHECKPOINT, max_batch=64, threads=None),
    ):
        write_lines(Path(name), lines, read_card(connection, keys.DEFAULT_MODEL).stop_ids)
        for interrupt_at in (INTERRUPT_AT, None):
            console.print(f"[bold green]$[/] minilab-client {' '.join(_COMMAND)}", highlight=False)
            for line in run_client(Path(name), interrupt_at):
                console.print(line)
    console.save_svg(str(output), title="a batch, interrupted and gone on with")


if __name__ == "__main__":
    main()
