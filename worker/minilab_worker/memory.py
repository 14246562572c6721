"""How many tokens' keys and values fit into this machine's memory, where no option says it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SHARE: Final = 0.5
"""Of the memory that is free once the model is loaded: the rest is for activations and neighbours."""

_CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


def tokens_that_fit(bytes_of_a_token: int, most: int, least: int) -> int:
    """Tokens that half of the free memory holds, but no more than ``most`` and no fewer than ``least``."""
    return max(least, min(most, int(_SHARE * free_bytes()) // bytes_of_a_token))


def free_bytes() -> int:
    """Bytes that this process may still take: of the machine, or of its container where that is less."""
    machine = _available() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = _left_in_container()
    return machine if container is None else min(machine, container)


def _available() -> int | None:
    """What Linux says could be taken without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def _left_in_container() -> int | None:
    """What a container's own limit leaves; None without one."""
    try:
        limit, used = ((_CONTROL_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit != "max" else None
