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

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = runpy.run_path(str(Path(self.root) / "minilab_gen" / "kernels" / "build.py"))["build"]
        library = build()
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(platform_tags())}"
