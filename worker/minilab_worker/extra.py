"""Whether the extra ``[serve]`` is installed, found out without the seconds that loading it takes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_NEEDED: Final = ("numpy", "safetensors")
"""What only a worker needs. The private Redis, a part of the extra too, gives advice of its own where it is missing."""


def check_extra() -> None:
    """Raises ModuleNotFoundError, which ``minilab-worker`` turns into a line that says what to install."""
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
