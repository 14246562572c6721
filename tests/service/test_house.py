"""What the project promises about itself: which package imports which, what an import costs, what the wheel holds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from minilab_gen.kernels.build import SOURCE, library_name

ROOT = Path(__file__).parent.parent.parent
PACKAGES = [
    ROOT / "minilab_gen",
    ROOT / "worker" / "minilab_worker",
    ROOT / "client" / "minilab_client",
    ROOT / "gateway" / "minilab_gateway",
]
SOURCES = sorted(file for folder in [*PACKAGES, ROOT / "tests", ROOT / "benchmarks"] for file in folder.rglob("*.py"))
DRAWERS = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
"""Names that say nothing, so that anything could be put inside."""
LARGEST_BASE_MODEL = 20_000_000
"""Bytes: the most that the shipped model may add to an installation."""


def run_python(*arguments: str, **environment: str) -> str:
    """Run this interpreter from the project's folder; what it printed, once it ended well."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | environment,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def heavy_imports(module: str) -> str:
    """Which of the libraries that only a worker needs are loaded once the module is imported."""
    heavy = "{'torch', 'numpy', 'safetensors'}"
    return run_python("-c", f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))").strip()


def relative(file: Path) -> str:
    """The file as a reader of a failure wants to see it."""
    return str(file.relative_to(ROOT))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel as a user would get it, opened."""
    folder = tmp_path_factory.mktemp("wheel")
    run_python("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (file,) = folder.glob("*.whl")
    return zipfile.Path(file)


def test_every_import_follows_the_contracts() -> None:
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"

    report = run_python("-c", lint, "--no-logo", "--no-cache")

    assert "0 broken" in report


@pytest.mark.parametrize(
    "module", ["minilab_gen", "minilab_gen.protocol", "minilab_client", "minilab_client.cli", "minilab_gateway.app"]
)
def test_what_a_client_imports_needs_no_torch(module: str) -> None:
    assert heavy_imports(module) == ""


def test_every_source_file_says_what_it_is_for() -> None:
    silent = [relative(file) for file in SOURCES if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))]

    assert silent == []


def test_no_module_is_a_drawer() -> None:
    paths = set(SOURCES) | {file.parent for file in SOURCES}

    assert [relative(path) for path in sorted(paths) if DRAWERS & set(path.stem.split("_"))] == []


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    folders = {entry.name for entry in wheel.iterdir() if not entry.name.endswith(".dist-info")}

    assert folders == {folder.name for folder in PACKAGES}


@pytest.mark.parametrize("package", ["minilab_gen", "minilab_worker", "minilab_client", "minilab_gateway"])
def test_every_package_in_the_wheel_is_marked_as_typed(wheel: zipfile.Path, package: str) -> None:
    assert (wheel / package / "py.typed").exists()


def test_every_module_is_in_the_wheel(wheel: zipfile.Path) -> None:
    modules = {str(file.relative_to(folder.parent)) for folder in PACKAGES for file in folder.rglob("*.py")}

    assert {name for name in wheel.root.namelist() if name.endswith(".py")} == modules


def test_the_wheel_carries_the_compiled_kernels_and_says_for_which_platform(wheel: zipfile.Path) -> None:
    assert (wheel / "minilab_gen" / "kernels" / library_name()).exists()
    (facts,) = [entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info")]
    tag = (facts / "WHEEL").read_text(encoding="utf-8")
    assert "Root-Is-Purelib: false" in tag
    assert "Tag: py3-none-" in tag
    assert "py3-none-any" not in tag


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's versions are in the tags of Linux only")
def test_the_wheel_asks_for_no_older_glibc_than_the_kernels_do(wheel: zipfile.Path) -> None:
    library = (wheel / "minilab_gen" / "kernels" / library_name()).read_bytes()
    versions = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]

    assert f"-py3-none-manylinux_2_{max(versions)}_" in str(wheel.root.filename)


def test_the_source_distribution_carries_the_kernels_sources_and_no_compiled_ones(tmp_path: Path) -> None:
    run_python("-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path))
    (file,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}

    sources = {str(source.relative_to(ROOT)) for source in SOURCE.iterdir()}
    assert {"hatch_build.py", *sources} <= names
    assert f"minilab_gen/kernels/{library_name()}" not in names


def test_a_build_asks_for_a_compiler_from_the_index_only_where_the_system_has_none() -> None:
    code = "from hatchling.build import get_requires_for_build_wheel as ask; print(ask())"

    assert "ziglang" in run_python("-c", code, PATH="/nonexistent", CXX="")
    assert "ziglang" not in run_python("-c", code, CXX=sys.executable)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_the_wheel_carries_the_base_model(wheel: zipfile.Path, file: str) -> None:
    assert (wheel / "minilab_gen" / "base" / file).exists()


def test_the_wheel_carries_the_licence(wheel: zipfile.Path) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.root.namelist())


def test_the_base_model_is_small_enough_to_ship(wheel: zipfile.Path) -> None:
    sizes = [entry.file_size for entry in wheel.root.infolist() if entry.filename.startswith("minilab_gen/base/")]

    assert 0 < sum(sizes) <= LARGEST_BASE_MODEL
