"""``python -m other_processor``: the tests of exactness again, as processors of other kinds compute. It holds no test.

Which instructions torch, oneDNN and MKL use can be limited, so a processor with AVX-512 also shows what one with AVX2
alone does. What a processor does not have cannot be shown, and is said to be skipped.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

TESTS: Final = Path(__file__).parent
FILES: Final = (
    "gen/test_attention.py",
    "gen/test_engine.py",
    "gen/test_families.py",
    "gen/test_generate.py",
    "gen/test_model.py",
    "gen/test_sampling.py",
    "worker/test_self_check.py",
)
"""What computes logits and tokens."""

_TELLING: Final = ("sse4_1", "avx2", "fma", "avx_vnni", "avx_ne_convert", "avx512", "amx", "asimd", "bf16")
"""Beginnings of the features that decide what is computed with which instructions."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of processor: what it is called, what a processor must have to act it, and the limits that make it."""

    name: str
    needs: str
    """The feature of this processor without which nothing can be shown."""
    capability: str
    """What torch then says that it uses."""
    limits: dict[str, str]


KINDS: Final = (
    Kind("AVX-512", "avx512f", "AVX512", {}),
    Kind(
        "AVX2 and no AVX-512",
        "avx2",
        "AVX2",
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ),
    # oneDNN keeps its instructions: its packed product for SSE4.1 is not exact by row on two threads, which a worker's
    # self-check finds, so that it pads there, but which the tests of packed layers would call a failure.
    Kind("torch's own kernels without AVX2", "sse4_1", "DEFAULT", {"ATEN_CPU_CAPABILITY": "default"}),
)


def features() -> frozenset[str]:
    """What this processor can do, by Linux's names; empty where Linux does not tell."""
    return frozenset(_of_processor("flags").split() or _of_processor("Features").split())


def others(present: frozenset[str], capability: str) -> list[tuple[Kind, bool]]:
    """The kinds that this processor is not of itself, and whether it can act them."""
    return [(kind, kind.needs in present and bool(kind.limits)) for kind in KINDS if kind.capability != capability]


def describe() -> str:
    """The processor, in a few lines."""
    import torch  # which takes seconds, and `others` needs none

    uses = f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    telling = sorted(feature for feature in features() if feature.startswith(_TELLING))
    return "\n".join(
        [
            f"processor: {_of_processor('model name') or platform.processor() or platform.machine()}",
            f"  features: {' '.join(telling) or 'unknown'}",
            f"  torch {torch.__version__} uses {uses}",
        ]
    )


def capability_with(limits: dict[str, str]) -> str:
    """What torch says that it uses under these limits."""
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    environment = {**os.environ, **limits}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def run(kind: Kind, arguments: list[str]) -> int:
    """The tests as on a processor of this kind; pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    command += [str(TESTS / file) for file in FILES]
    return subprocess.run(command, env={**os.environ, **kind.limits}, stdin=subprocess.DEVNULL, check=False).returncode


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--describe", "only_describe", is_flag=True, help="Only say what processor this is.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(only_describe: bool, arguments: tuple[str, ...]) -> None:
    """Run the tests of exactness as other kinds of processors compute; ARGUMENTS are pytest's."""
    click.echo(describe())
    if only_describe:
        return
    failed = []
    for kind, can_act in others(features(), capability_with({})):
        limits = " ".join(f"{name}={value}" for name, value in kind.limits.items())
        if not can_act:
            click.echo(f"== {kind.name}: SKIPPED, NOTHING WAS CHECKED: this processor has no {kind.needs}")
        elif (capability := capability_with(kind.limits)) != kind.capability:
            click.echo(f"== {kind.name}: {limits} must make torch use {kind.capability}, got {capability}")
            failed.append(kind.name)
        else:
            click.echo(f"== {kind.name}: {limits}")
            if run(kind, list(arguments)) != 0:
                failed.append(kind.name)
    sys.exit(f"failed as on other processors: {', '.join(failed)}" if failed else 0)


def _of_processor(name: str) -> str:
    """A line of what Linux says about the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


if __name__ == "__main__":
    main()
