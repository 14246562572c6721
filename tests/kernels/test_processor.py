"""A back end is used only where the processor has all that it was compiled for and the operating system saves it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.driving import KINDS, decoder_of
from minilab_gen.kernels.build import BACKENDS, FLAGS, SOURCE, toolchain
from minilab_gen.kernels.library import KernelError, backend, backends, library

X86 = "avx2" in backends() or toolchain().machine == "x86_64"
FMA, OSXSAVE, AVX = 1 << 12, 1 << 27, 1 << 28
AVX2, F, DQ, BW, VL = 1 << 5, 1 << 16, 1 << 17, 1 << 30, 1 << 31
LEAF_1, LEAF_7 = FMA | OSXSAVE | AVX, AVX2 | F | DQ | BW | VL

only_x86 = pytest.mark.skipif(not X86, reason="SKIPPED: CPUID is of x86-64")


def chosen_for(ecx1: int, ebx7: int, xcr0: int) -> str:
    return str(library().mlk_backend_for(ecx1, ebx7, xcr0).decode())


@only_x86
@pytest.mark.parametrize(
    ("ecx1", "ebx7", "xcr0", "name"),
    [
        (LEAF_1, LEAF_7, 0xE7, "avx512"),
        (LEAF_1, LEAF_7, 0x7, "avx2"),  # the hypervisor or the kernel keeps AVX-512 off
        (LEAF_1, LEAF_7, 0x67, "avx2"),  # half of the registers are saved
        (LEAF_1, LEAF_7 & ~BW, 0xE7, "avx2"),
        (LEAF_1, LEAF_7 & ~VL, 0xE7, "avx2"),
        (LEAF_1, LEAF_7 & ~DQ, 0xE7, "avx2"),
        (LEAF_1, AVX2, 0x7, "avx2"),
        (LEAF_1 & ~FMA, LEAF_7, 0xE7, "plain"),
        (LEAF_1 & ~OSXSAVE, LEAF_7, 0xE7, "plain"),
        (LEAF_1, LEAF_7, 0x3, "plain"),
        (LEAF_1, LEAF_7 & ~AVX2, 0xE7, "plain"),
        (0, 0, 0, "plain"),
    ],
)
def test_a_back_end_needs_every_flag_and_saved_registers(ecx1: int, ebx7: int, xcr0: int, name: str) -> None:
    assert chosen_for(ecx1, ebx7, xcr0) == name


@only_x86
def test_every_flag_that_an_object_is_compiled_with_is_asked_of_the_processor() -> None:
    asked = {
        "avx2": "AVX2",
        "fma": "FMA",
        "avx512f": "AVX512F",
        "avx512dq": "AVX512DQ",
        "avx512bw": "AVX512BW",
        "avx512vl": "AVX512VL",
    }
    source = (SOURCE / "processor.cpp").read_text(encoding="utf-8")

    for name, flags in BACKENDS["x86_64"].items():
        line = next((line for line in source.splitlines() if f"&backend_{name.lower()}," in line), "")
        for flag in flags:
            if flag.startswith("-m"):
                assert re.search(rf"\b{asked[flag[2:]]}\b", line), (name, flag)


def test_the_best_that_runs_here_is_chosen_and_plain_runs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINILAB_KERNELS", raising=False)

    assert backend() == backends()[0]
    assert backends()[-1] == "plain"


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx512 "])
def test_a_name_that_is_no_back_end_is_refused_with_those_that_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILAB_KERNELS", name)

    with pytest.raises(KernelError, match=f"must be one of: {' '.join(backends())}; got {name}"):
        decoder_of(KINDS["odd"])


def test_a_back_end_that_this_processor_lacks_is_refused_and_does_not_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    (missing, *_) = [name for name in ("avx512", "neon", "avx2") if name not in backends()]
    monkeypatch.setenv("MINILAB_KERNELS", missing)

    with pytest.raises(KernelError, match=f"got {missing}"):
        decoder_of(KINDS["odd"])
    with pytest.raises(KernelError, match="must name one of"):
        backend()


def test_an_object_of_one_processor_offers_nothing_to_others(tmp_path: Path) -> None:
    """An inline function that it defined might be the copy that the linker keeps for all."""
    tools = toolchain()
    if not shutil.which("nm"):
        pytest.skip("SKIPPED: there is no nm to look into objects")
    name, flags = list(BACKENDS[tools.machine].items())[-1]
    object_file = tmp_path / "backend.o"
    command = [
        *tools.compile,
        *FLAGS,
        *flags,
        f"-DMLK_BACKEND_{name}",
        "-c",
        str(SOURCE / "backend.cpp"),
        "-o",
        str(object_file),
    ]
    subprocess.run(command, check=True)

    listed = subprocess.run(
        ["nm", "-C", str(object_file)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    outside = [
        line.split(maxsplit=2)[-1] for line in listed if line.split()[-2 if " " not in line[19:] else 1] not in "tbrdU"
    ]

    assert outside == [f"mlk::backend_{name.lower()}"]


def test_a_process_forked_from_one_with_helpers_computes_alone() -> None:
    program = """
import os, sys
sys.path.insert(0, "tests")
from kernels.driving import KINDS, decoder_of, digest, chunked, sequences
prompts = sequences(KINDS["odd"], [30])
decoder = decoder_of(KINDS["odd"], threads=3)
before = digest(chunked(decoder, prompts, [30]))
child = os.fork()
same = digest(chunked(decoder, prompts, [30])) == before
if child == 0:
    os._exit(0 if same else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not same)
"""
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=root, env=os.environ, timeout=120, check=False
    )

    assert ended.returncode == 0
