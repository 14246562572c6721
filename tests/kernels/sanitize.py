"""Runs the kernels as the sanitizers watch: for bad addresses and undefined behaviour, then for data races.

``python -m kernels.sanitize`` (with ``PYTHONPATH=tests``). The bits must be the golden ones here, too. No Python runs
in the watched process, so what is found is ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from kernels.golden import MODELS, compile_replay, expected, replayed, write_case
from minilab_gen.kernels.build import build, toolchain
from minilab_gen.kernels.decoder import WEIGHT_TYPES
from minilab_gen.kernels.library import backends

SANITIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    # Checks of every address in a back end, all of which is inlined, are many minutes of compiling.
    "addresses and undefined behaviour": (
        "address,undefined",
        ("-fno-sanitize=address,null,alignment,object-size,pointer-overflow",),
    ),
    "data races": ("thread", ()),
}
"""What each looks for, its name, and further flags for the back ends."""

_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
_OPTIONS = {  # a finding ends the program, with the stacks of both threads
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
_THREADS = 3


def main() -> None:
    """Build with each sanitizer and replay every small model, with every type of weights and each back end here."""
    torch.set_num_threads(1)
    os.environ |= _OPTIONS
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kinds = [(name, weights) for name in MODELS[1:] for weights in WEIGHT_TYPES]
        cases = {f"{name} {weights}": folder / f"{name}-{weights}.case" for name, weights in kinds}
        for title, file in cases.items():
            write_case(file, *title.split())
        wrong = [title for title, flags in SANITIZERS.items() if not _is_clean(folder, title, *flags, cases)]
    sys.exit(bool(wrong))


def _is_clean(folder: Path, title: str, flag: str, of_backends: tuple[str, ...], cases: dict[str, Path]) -> bool:
    started = time.monotonic()
    extra = (*_FLAGS, f"-fsanitize={flag}")
    library = build(folder / flag.split(",", 1)[0] / "libkernels.so", extra=extra, of_backends=of_backends)
    program = compile_replay(library, toolchain(), extra)
    print(f"{title}: compiled in {time.monotonic() - started:.0f} s", flush=True)
    bits = expected()["bits"]
    for backend in backends():
        for case, file in cases.items():
            try:
                found = replayed(program, file, _THREADS, backend=backend)
            except subprocess.CalledProcessError as error:
                print(
                    f"{title}: found one with {case}, {backend}: exit status {error.returncode}, see above", flush=True
                )
                return False
            if found != bits[case]:
                print(f"{title}: other bits with {case}, {backend}", flush=True)
                return False
    names = ", ".join(backends())
    print(f"{title}: none in {len(cases)} replays with each of {names}, {time.monotonic() - started:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
