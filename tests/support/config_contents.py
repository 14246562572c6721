"""The content of ``config.json`` for a small model of each family, and what transformers reads from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minilab_gen.models.families import FAMILIES
from support.family_checkpoints import config_class, shape_of

ARCHITECTURES = {name.removesuffix("ForCausalLM").removesuffix("LMHeadModel"): name for name in FAMILIES}
"""By the name that transformers' classes begin with."""


def content(name: str, **more: Any) -> dict[str, Any]:
    architecture = ARCHITECTURES[name]
    return {"architectures": [architecture], "model_type": FAMILIES[architecture].model_type, **shape_of(name)} | more


def written(folder: Path, stored: dict[str, Any]) -> Any:
    """The configuration that transformers reads from a folder with this content."""
    (folder / "config.json").write_text(json.dumps(stored))
    name = next(name for name, architecture in ARCHITECTURES.items() if [architecture] == stored["architectures"])
    return config_class(name).from_json_file(folder / "config.json")
