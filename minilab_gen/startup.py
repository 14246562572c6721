"""Ctrl-C while a program still loads what it needs. It must load nothing itself that takes time."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells have it."""


class Loading:
    """A ``with`` block that only imports: an interrupt exits the program at once, with nothing on stderr.

    As a KeyboardInterrupt it would come up inside whichever library is being loaded, with a traceback of that.
    Garbage is not looked for meanwhile, as what is loaded stays: that saves a tenth of the time.
    """

    def __init__(self) -> None:
        self._earlier: Any = None
        self._collects = gc.isenabled()

    def __enter__(self) -> None:
        gc.disable()
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return  # another meaning was given to it, or none
        try:
            self._earlier = signal.signal(signal.SIGINT, _exit)
        except ValueError:  # not in the main thread, which alone gets interrupts
            self._earlier = None

    def __exit__(self, *_: object) -> None:
        if self._collects:
            gc.enable()
        if self._earlier is not None:
            signal.signal(signal.SIGINT, self._earlier)


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)  # nothing was written yet, so nothing is lost
