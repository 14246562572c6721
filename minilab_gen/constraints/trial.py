"""Compiles a grammar in a process of its own, which may take so much of a processor and of memory and no more.

``python -m minilab_gen.constraints.trial`` reads a grammar, compiles it for single bytes, and prints what is wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Final

SECONDS: Final = 5
"""Of a processor that a grammar may take to compile: however busy the machine is, the same grammars are refused."""

_LONGEST: Final = 120.0
"""Seconds until it is given up, on a machine that is too busy to compile at all."""

_MEMORY: Final = 2 * 1024**3
"""Bytes of address space that it may take."""

_OUT_OF_TIME: Final = () if sys.platform == "win32" else (-signal.SIGXCPU, -signal.SIGKILL)

_TAIL: Final = 400
"""Characters of a complaint that are passed on."""


def fault_of(grammar: str) -> str | None:
    """Why a grammar cannot be compiled, or takes too long; None where it can."""
    command = [sys.executable, "-m", __spec__.name]
    try:
        done = subprocess.run(
            command, input=grammar.encode(), capture_output=True, timeout=_LONGEST, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {_LONGEST:.0f} s to compile here"
    if done.returncode in _OUT_OF_TIME:
        return f"it takes more than {SECONDS} s to compile"
    if done.returncode:
        return f"it takes more than {_MEMORY // 1024**3} GiB or too deep a stack to compile"
    said = done.stdout.decode(errors="replace").strip()
    return f"{said[:_TAIL]}..." if len(said) > _TAIL else said or None


def main() -> None:
    """Compile what stands on standard input, and print why that cannot be done."""
    if sys.platform != "win32":
        import resource

        os.nice(10)  # the worker's tokens come first
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    from minilab_gen.constraints.library import byte_tokenizer, complaint, matcher

    found = matcher(byte_tokenizer(), sys.stdin.buffer.read().decode())
    found.compute_bitmask()
    print(complaint(found) if found.is_error() else "")


if __name__ == "__main__":
    main()
