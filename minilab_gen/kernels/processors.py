"""How many processors this process may use: of its affinity, or of its container where that allows fewer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def processors() -> int:
    """Processors that this process may use: those of its affinity, or of its container's quota where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *map(int, _quotas())]))


def _quotas() -> list[float]:
    """Processors that control groups allow, this process's own groups and those around them; none without a limit."""
    found = []
    for group in _own_groups():
        try:
            if (group / "cpu.max").exists():  # version 2
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            continue
        if quota not in ("max", "-1"):
            found.append(int(quota) / int(period))
    return found


def _own_groups() -> list[Path]:
    """Folders of the groups that may limit processors; a container sees its own as the root."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        if not controllers or "cpu" in controllers.split(","):
            root = _CONTROL_GROUPS / "cpu" if controllers else _CONTROL_GROUPS
            inner = root / name.lstrip("/")
            groups += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return groups
