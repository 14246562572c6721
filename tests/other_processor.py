"""``python -m other_processor``: the tests of exactness again, as other processors compute. It holds no test.

``MINILAB_KERNELS`` chooses among the back ends that a processor can run. What it cannot run is said to be skipped; the
golden bits hold all of them together (``make golden``).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from minilab_gen.kernels.library import backend, backends
from minilab_gen.kernels.processors import processors

TESTS: Final = Path(__file__).parent
FILES: Final = (
    "gen/test_engine.py",
    "gen/test_families.py",
    "gen/test_generate.py",
    "gen/test_model.py",
    "gen/test_sampling.py",
)
"""What computes logits and tokens. The tests of the kernels themselves try each back end anyway."""

LEFT_OUT: Final = "greedy_tokens_are_those_of_transformers"
"""Minutes with plain kernels, and no more than follows from equal logits."""

BACKENDS: Final = ("avx512", "avx2", "neon", "plain")

_TELLING: Final = ("sse4_1", "avx2", "fma", "avx512", "asimd")
"""Beginnings of the features that decide which instructions are used."""


def others() -> list[tuple[str, bool]]:
    """The back ends that are not used here by themselves, and whether this processor can run them."""
    return [(name, name in backends()) for name in BACKENDS if name != backend()]


def describe() -> str:
    """The processor, in a few lines."""
    features = (_of_processor("flags") or _of_processor("Features")).split()
    telling = sorted(feature for feature in features if feature.startswith(_TELLING))
    return "\n".join(
        [
            f"processor: {_of_processor('model name') or platform.processor() or platform.machine()}",
            f"  features: {' '.join(telling) or 'unknown'}",
            f"  kernels: {backend()} of {', '.join(backends())}; {processors()} processors",
        ]
    )


def run(name: str, arguments: list[str]) -> int:
    """The tests with a back end; pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal"]
    command += ["-k", f"not {LEFT_OUT}", *arguments]
    command += [str(TESTS / file) for file in FILES]
    environment = {**os.environ, "MINILAB_KERNELS": name}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--describe", "only_describe", is_flag=True, help="Only say what processor this is.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(only_describe: bool, arguments: tuple[str, ...]) -> None:
    """Run the tests of exactness as other kinds of processors compute; ARGUMENTS are pytest's."""
    click.echo(describe())
    if only_describe:
        return
    failed = []
    for name, can_run in others():
        if not can_run:
            click.echo(f"== {name}: SKIPPED, NOTHING WAS CHECKED: this processor cannot run it")
            continue
        click.echo(f"== {name}")
        if run(name, list(arguments)) != 0:
            failed.append(name)
    sys.exit(f"failed with other kernels: {', '.join(failed)}" if failed else 0)


def _of_processor(name: str) -> str:
    """A line of what Linux says about the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


if __name__ == "__main__":
    main()
