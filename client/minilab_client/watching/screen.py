"""A terminal while the view has it: its other screen, its keys and its signals, all of it given back at the end.

It needs termios, which only Unix has.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, Final, Literal, NoReturn, Self

from rich.console import Console, RenderableType

from minilab_client.exit_codes import ExitCode

Wish = Literal["look", "redraw", "suspend", "exit"]
"""What is to be done next: time has passed, a key was struck or a signal came."""

# Lines are not wrapped: a terminal that draws a character wider than we think cuts that line and spoils no other.
_TAKE: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_GIVE_BACK: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"

_USUAL_SIZE: Final = (80, 24)
"""Columns and lines of a terminal that does not tell."""


class Screen:
    """The terminal at stdout with the keys of the one at stdin: a context manager, for the main thread."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._keyboard: int | None = None
        self._saved: list[Any] | None = None
        self._stopping = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._awake, alarm = (stack.enter_context(end) for end in socket.socketpair())
            alarm.setblocking(False)
            self._awake.setblocking(False)
            stack.enter_context(_wakened_through(alarm))
            stack.enter_context(self._signals())
            stack.callback(self._give_back)
            self._take()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def has_keys(self) -> bool:
        return self._keyboard is not None

    @property
    def height(self) -> int:
        """Lines, as of now."""
        return self._size()[1]

    def show(self, view: RenderableType) -> None:
        """Draw over what is there."""
        width, height = self._size()
        self._console.size = width, height
        with self._console.capture() as capture:
            self._console.print(view)
        lines = capture.get().removesuffix("\n").split("\n")[:height]
        rest = "\r\n" + _CLEAR_BELOW if len(lines) < height else ""
        self._write(_HOME + "\r\n".join(_CLEAR_LINE + line for line in lines) + rest)

    def wait(self, seconds: float) -> Wish:
        """Return after so many seconds, or at once for a key or a signal."""
        sources: list[Any] = [self._awake] if self._keyboard is None else [self._awake, self._keyboard]
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        if self._keyboard in ready and self._exits():
            return "exit"
        if self._awake in ready:
            with contextlib.suppress(BlockingIOError):
                self._awake.recv(1024)
            return "suspend" if self._stopping else "redraw"
        return "redraw" if ready else "look"

    def suspend(self) -> None:
        """Stop as Ctrl-Z stops other programs, with the terminal given back meanwhile."""
        self._stopping = False
        self._give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns after SIGCONT
        signal.signal(signal.SIGTSTP, handler)
        self._take()

    def _take(self) -> None:
        if sys.stdin is not None and sys.stdin.isatty():
            self._keyboard = sys.stdin.fileno()
            self._saved = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._write(_TAKE)

    def _give_back(self) -> None:
        with _unhurried(), contextlib.suppress(OSError, termios.error):  # a terminal that is gone wants nothing back
            self._write(_GIVE_BACK)
            if self._keyboard is not None and self._saved is not None:
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._saved)

    def _exits(self) -> bool:
        """Whether q is among the keys that were struck, or no more keys will come."""
        assert self._keyboard is not None
        keys = os.read(self._keyboard, 1024)
        return not keys or b"q" in keys.lower()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM ends the program in order, SIGTSTP is noted, SIGWINCH only ends a wait."""

        def end(_signal: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(ExitCode.TERMINATED)

        def note(number: int, _frame: FrameType | None) -> None:
            self._stopping = self._stopping or number == signal.SIGTSTP

        earlier = {
            number: signal.signal(number, handler)
            for number, handler in ((signal.SIGTERM, end), (signal.SIGTSTP, note), (signal.SIGWINCH, note))
        }
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    @staticmethod
    def _size() -> tuple[int, int]:
        """Columns and lines, as of now and whatever COLUMNS says, which no resize changes."""
        width, height = os.get_terminal_size(sys.stdout.fileno())
        return width or _USUAL_SIZE[0], height or _USUAL_SIZE[1]

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """Put a second Ctrl-C or SIGTERM off to the end of the block."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


@contextlib.contextmanager
def _wakened_through(alarm: socket.socket) -> Iterator[None]:
    """Let each signal that has a handler put a byte there, so that a select that waits on the other end returns."""
    earlier = signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
