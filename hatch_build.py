"""The build hook: compiles the kernels, so that wheels and editable installs carry them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

_OF_GLIBC = re.compile(rb"lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")
"""Libraries that PEP 600 lets a manylinux wheel need: those of ours, whatever else it allows."""


class KernelsHook(BuildHookInterface[Any]):
    """Puts the library beside the sources and marks the wheel as one for this platform and any Python 3."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs besides: a compiler from PyPI, where the system has none."""
        return [] if _kernels(self.root)["has_compiler"]() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = _kernels(self.root)["build"]()
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(library)}"


def platform_of(library: Path) -> str:
    """The platforms that the library runs on, as a wheel's tag spells them.

    On Linux with glibc those whose glibc has every symbol that the library asks for; where it needs more than glibc, a
    Linux like this one.
    """
    tags = [*platform_tags()]
    plain = next((tag for tag in tags if tag.startswith("linux_")), None)
    if plain is None:
        return tags[0]
    content = library.read_bytes()
    needed = re.findall(rb"\0([\w+-]+\.so\.[\d.]+)(?=\0)", content)
    versions = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content)]
    if not versions or not all(_OF_GLIBC.fullmatch(name) for name in needed):
        return plain
    return f"manylinux_2_{max(versions)}_{plain.removeprefix('linux_')}"


def _kernels(root: str) -> dict[str, Any]:
    """The names in the kernels' build script, which imports nothing of the package."""
    return runpy.run_path(str(Path(root) / "minilab_gen" / "kernels" / "build.py"), run_name="kernels_build")
