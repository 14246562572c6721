"""JSON objects of checkpoint folders. It must know neither torch nor Redis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minilab_gen.errors import CheckpointError
from minilab_gen.impostors import impostor


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError where there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(impostor(file) or f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content
