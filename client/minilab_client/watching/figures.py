"""How numbers, times and a whole look are written out in figures."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from minilab_client.watching.snapshot import Snapshot


def line(snapshot: Snapshot) -> str:
    """A look in one line, for people and for `awk`."""
    speed = snapshot.speed.now
    parts = (
        clock(snapshot.taken_at),
        f"queued {snapshot.queued}",
        f"running {snapshot.counts.running}",
        f"tokens/s {'-' if speed is None else round(speed)}",
        f"workers {snapshot.fleet.up}",
    )
    return "  ".join(parts)


def figures(snapshot: Snapshot) -> dict[str, Any]:
    """The whole look in JSON; times are Unix times in seconds."""
    seen = asdict(snapshot)
    speed, counts = seen.pop("speed"), seen.pop("counts")
    totals = {"queued": snapshot.queued, "running_jobs": counts["running"], "tokens_per_second": speed["now"]}
    return {**totals, **seen}


def number(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{round(value):,}".replace(",", " ")


def clock(moment: float) -> str:
    """The local time of a Unix time."""
    return datetime.fromtimestamp(moment, UTC).astimezone().strftime("%H:%M:%S")
