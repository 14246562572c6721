"""Every build gives the golden bits."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.golden import MODELS, compile_replay, cross_toolchain, expected, hashes, write_case
from minilab_gen.kernels.build import build, library_name, toolchain
from minilab_gen.kernels.decoder import WEIGHT_TYPES
from minilab_gen.kernels.library import numerics

HASHES = [f"{name} {weights}" for name in MODELS for weights in WEIGHT_TYPES]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    return compile_replay(_copied(folder), toolchain())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cases are written that all builds replay: once."""
    return tmp_path_factory.mktemp("cases")


def _copied(folder: Path) -> Path:
    """The installed library, where a program may stand beside it."""
    copy = folder / library_name()
    copy.write_bytes(build().read_bytes())
    return copy


def test_the_golden_bits_are_of_these_numerics_and_all_models() -> None:
    assert expected()["numerics"] == numerics()
    assert list(expected()["bits"]) == HASHES


@pytest.mark.parametrize("threads", [1, 3])
def test_every_back_end_gives_the_golden_bits(each_backend: str, program: Path, cases: Path, threads: int) -> None:
    assert hashes(cases, program, each_backend, threads) == expected()["bits"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about processors of this kind")
@pytest.mark.parametrize(("processor", "backend"), [("Nehalem", "plain"), ("Haswell", "avx2")])
def test_an_old_processor_meets_no_instruction_that_it_lacks(
    program: Path, tmp_path: Path, processor: str, backend: str
) -> None:
    emulator = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("SKIPPED: qemu-user-static is not installed")
    case, out = tmp_path / "odd.case", tmp_path / "odd.out"
    write_case(case, "odd", "float32")

    command = [emulator, "-cpu", processor, str(program), str(case), str(out), "2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout.strip()) == (0, backend), ended.stderr
    assert hashlib.sha256(out.read_bytes()).hexdigest()[:32] == expected()["bits"]["odd float32"]


def test_arm_gives_the_golden_bits(cases: Path, tmp_path: Path) -> None:
    found = cross_toolchain()
    if found is None:
        pytest.skip("SKIPPED: g++-aarch64-linux-gnu and qemu-user-static are not installed")
    tools, runner = found
    program = compile_replay(build(tmp_path / "libkernels.so", tools), tools)
    small = {name: bits for name, bits in expected()["bits"].items() if not name.startswith("base")}

    for backend in ("neon", "plain"):
        assert hashes(cases, program, backend, 2, runner) == small


def test_an_unoptimized_build_gives_the_golden_bits(cases: Path, tmp_path: Path) -> None:
    """Where a compiler fuses, inlines or reorders, it does so by what it optimizes."""
    program = compile_replay(build(tmp_path / "libkernels.so", extra=("-O1",)), toolchain())

    assert hashes(cases, program, "", 2) == expected()["bits"]
