"""The way into ``minilab-worker``. It must not import anything slow before Ctrl-C ends the program quietly."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the program. Ctrl-C while it is being imported ends it as any program, without a traceback."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the caller wants Ctrl-C ignored
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from minilab_worker.cli import main as run  # most of a second on a busy machine

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
