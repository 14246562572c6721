"""Compiles the kernels into one library beside this file: each back end for its processors, all else for any.

It must need nothing but the standard library: the build hook runs it by its path before anything is installed.
``python -m minilab_gen.kernels.build`` builds anew what has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "source"

FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    "-ffp-contract=off",  # rule 5 in source/rules.h: a compiler that fuses by itself rounds elsewhere than the next one
    "-fno-math-errno",  # a square root is one instruction
    "-fno-exceptions",  # with the next one: no C++ library at run time
    "-fno-rtti",
    "-fvisibility=hidden",  # what is not in minilab_kernels.h is nobody's business
    "-Wno-psabi",  # vectors pass between inlined functions only
]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
"""For who works on the kernels: a user's compiler may know warnings that ours does not."""

BACKENDS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "PLAIN": [],
        "AVX2": ["-mavx2", "-mfma"],
        "AVX512": [
            *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"),
            *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # gcc 12 warns about its own headers,
            "-Wno-unknown-warning-option",  # and clang that it knows no such warning
        ],
    },
    "aarch64": {"PLAIN": [], "NEON": []},
}
"""For each kind of processor the back ends and their flags. What they ask of a processor stands in processor.cpp."""

OTHERS = [
    *("bundles", "edits", "interface", "layers", "logprobs", "memory", "model", "processor", "rope"),
    *("samplers", "sampling", "stages", "step", "team", "tensors", "weights"),
]
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class BuildError(Exception):
    """There is no compiler, or it refused."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How to compile and how to link."""

    compile: tuple[str, ...]
    link: tuple[str, ...]
    machine: str
    """The processors that it compiles for."""


def library_name(system: str = sys.platform) -> str:
    return "libminilab_kernels.dylib" if system == "darwin" else "libminilab_kernels.so"


def has_compiler() -> bool:
    """Whether ``CXX`` or the system has a compiler."""
    return _system_compiler() is not None


def _system_compiler() -> list[str] | None:
    named = shlex.split(os.environ.get("CXX", ""))
    candidates = [named] if named else [["c++"], ["g++"], ["clang++"]]
    return next((command for command in candidates if shutil.which(command[0])), None)


def toolchain() -> Toolchain:
    """``CXX``, else the system's compiler, else ziglang from PyPI. Raises BuildError where there is none."""
    machine = platform.machine().lower()
    machine = _MACHINES.get(machine, machine)
    if command := _system_compiler():
        as_needed = [] if sys.platform == "darwin" else ["-Wl,--as-needed"]
        return Toolchain(tuple(command), (*command, *as_needed), machine)
    if importlib.util.find_spec("ziglang"):
        zig, baseline = (sys.executable, "-m", "ziglang"), "-mcpu=baseline"  # else it compiles for this processor alone
        # Nothing but the C library: to compile those of C++ and of the sanitizers first would take most of the time.
        return Toolchain((*zig, "c++", baseline), (*zig, "cc", baseline, "-s", "-nostdlib", "-lc"), machine)
    raise BuildError(
        "the kernels need a C++17 compiler and none was found; install g++ or clang++, or say `pip install ziglang`"
    )


def build(
    target: Path | None = None,
    tools: Toolchain | None = None,
    extra: tuple[str, ...] = (),
    *,
    of_backends: tuple[str, ...] = (),
    strict: bool = False,
) -> Path:
    """Compile the library to ``target`` unless what is there was made of the same; its path. Raises BuildError.

    ``extra`` flags are for compiling and linking; those ``of_backends`` follow when a back end is compiled.
    """
    target = target or HERE / library_name()
    tools = tools or toolchain()
    identity = _identity(tools, (*extra, *of_backends))
    if target.exists() and identity.encode() in target.read_bytes():
        return target
    warnings = WARNINGS if strict else []
    with tempfile.TemporaryDirectory() as folder:
        objects, commands = [], []
        for name, source, flags in _units(tools.machine, identity, of_backends):
            objects.append(str(Path(folder) / f"{name}.o"))
            commands.append(
                [*tools.compile, *FLAGS, *warnings, *extra, *flags, "-c", str(SOURCE / source), "-o", objects[-1]]
            )
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands))
        linked = Path(folder) / target.name
        _run([*tools.link, "-shared", "-pthread", *extra, *objects, "-o", str(linked)])
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.part")
        shutil.copyfile(linked, part)
        part.replace(target)  # in one go: a process that has the old one mapped keeps it
    return target


def _units(machine: str, identity: str, of_backends: tuple[str, ...]) -> list[tuple[str, str, list[str]]]:
    """Name, source file and flags of each object."""
    backends = BACKENDS.get(machine, {"PLAIN": []})
    units = [(name, "backend.cpp", [f"-DMLK_BACKEND_{name}", *flags, *of_backends]) for name, flags in backends.items()]
    return units + [(name, f"{name}.cpp", [f"-DMLK_BUILD={identity}"]) for name in OTHERS]


def _identity(tools: Toolchain, extra: tuple[str, ...]) -> str:
    """A hash of everything that the library is made of."""
    digest = hashlib.sha256()
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    version = subprocess.run([*tools.compile, "--version"], capture_output=True, check=False).stdout
    commands = [part for part in (*tools.compile, *tools.link) if part != sys.executable]  # pip's lives in a new folder
    digest.update(repr((FLAGS, BACKENDS, commands, tools.machine, extra, version)).encode())
    return "b" + digest.hexdigest()[:24]


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode:
        raise BuildError(f"{shlex.join(command)}\n{ended.stdout}")
    if ended.stdout.strip():
        print(ended.stdout, file=sys.stderr)


def announcement() -> str:
    """What an installation is about to do, for who waits for it."""
    if command := _system_compiler():
        return f"Compiling the kernels with {shlex.join(command)}: up to a minute"
    return "Compiling the kernels with ziglang from PyPI, since no C++ compiler was found: 100 MB and a minute or two"


def main() -> None:
    """Build, and say where."""
    parser = argparse.ArgumentParser(description="Compile the kernels.")
    parser.add_argument("--strict", action="store_true", help="warnings are errors")
    parser.add_argument("--announce", action="store_true", help="only say how an installation builds them")
    told = parser.parse_args()
    if told.announce:
        print(announcement())
        return
    try:
        print(build(strict=told.strict))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
