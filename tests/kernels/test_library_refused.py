"""What is said where the library of the kernels is missing or another, and what its Python side refuses itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.driving import KINDS, decoder_of
from minilab_gen.kernels import build as building
from minilab_gen.kernels.decoder import Decoder
from minilab_gen.kernels.library import ABI, KernelError, library
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.request import SamplingSettings

COMPILE = r"`python -m minilab_gen\.kernels\.build` "


def test_a_library_that_is_missing_is_named_with_what_compiles_it(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=f"none.so is missing; {COMPILE}compiles it"):
        library(tmp_path / "none.so")


def test_a_file_that_is_no_library_is_named_with_what_makes_it_anew(tmp_path: Path) -> None:
    file = tmp_path / "text.so"
    file.write_text("no library")

    with pytest.raises(KernelError, match=f"text.so cannot be loaded: .*; {COMPILE}makes it anew"):
        library(file)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("int other(void) { return 1; }", "cannot be loaded: "),
        ('extern "C" int mlk_abi() { return 1; }', f"must have interface {ABI}, got 1"),
    ],
)
def test_a_library_of_another_version_is_refused_before_it_is_used(tmp_path: Path, source: str, message: str) -> None:
    code, file = tmp_path / "other.cpp", tmp_path / "other.so"
    code.write_text(source)
    subprocess.run([*building.toolchain().compile, "-shared", "-fPIC", str(code), "-o", str(file)], check=True)

    with pytest.raises(KernelError, match=f"other.so {message}.*{COMPILE}makes it anew"):
        library(file)


@pytest.mark.parametrize(
    ("tensor", "got"), [(torch.zeros(52, 36, dtype=torch.float64), "float64"), (torch.zeros(36, 52).T, "float32")]
)
def test_a_tensor_that_the_kernels_would_misread_is_refused(tensor: torch.Tensor, got: str) -> None:
    decoder = Decoder(KINDS["odd"], "float32", slots=1, threads=1)

    with pytest.raises(KernelError, match=f"gate must be contiguous and of float32, bfloat16 or float16, got {got}"):
        decoder.set("gate", tensor)


def test_a_step_whose_lists_differ_in_length_is_refused() -> None:
    decoder = decoder_of(KINDS["odd"])

    with pytest.raises(KernelError, match="must be equally many, got 2, 1, 2"):
        decoder.run([1, 2], [0], [0, 1], [0])
    with pytest.raises(KernelError, match="must be equally many, got 2, 2, 1"):
        decoder.run([1, 2], [0, 0], [0], [0])
    with pytest.raises(KernelError, match="samplers must be as many as output rows, 1, got 2"):
        decoder.run([1], [0], [0], [0], samplers=[TokenSampler(SamplingSettings(), 83), None])


def test_without_a_compiler_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    assert not building.has_compiler()
    with pytest.raises(building.BuildError, match="install g\\+\\+ or clang\\+\\+, or say `pip install ziglang`"):
        building.toolchain()


def test_without_a_systems_compiler_ziglang_compiles_for_any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "ziglang" else None)

    tools = building.toolchain()

    assert tools.compile == (sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline")
    assert tools.link[:5] == (sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline")
    assert "ziglang from PyPI" in building.announcement()


def test_a_compiler_is_named_by_cxx_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"'{sys.executable}' -m anything")

    assert building.toolchain().compile == (sys.executable, "-m", "anything")
    assert building.announcement().endswith(f"{sys.executable} -m anything: up to a minute")


def test_what_a_compiler_complains_of_is_shown_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\necho "it is broken"\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(building, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["build"])

    with pytest.raises(SystemExit) as ended:
        building.main()

    assert str(ended.value).startswith(f"{compiler} -std=c++17")
    assert str(ended.value).endswith("\nit is broken\n")


def test_what_a_compiler_warns_of_is_shown_and_the_library_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\necho "a warning"\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(building, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["build"])

    building.main()

    said = capsys.readouterr()
    assert said.out == f"{tmp_path / building.library_name()}\n"
    assert (tmp_path / building.library_name()).read_text() == "made\n"
    assert "a warning" in said.err


def test_an_installation_can_be_announced_without_a_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build", "--announce"])

    building.main()

    assert capsys.readouterr().out == f"{building.announcement()}\n"
