"""The build hook: compiles the kernels, so that wheels and editable installs carry them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


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
        build_data["tag"] = f"py3-none-{next(platform_tags())}"


def _kernels(root: str) -> dict[str, Any]:
    """The names in the kernels' build script, which imports nothing of the package."""
    return runpy.run_path(str(Path(root) / "minilab_gen" / "kernels" / "build.py"), run_name="kernels_build")
