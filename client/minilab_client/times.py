"""Moments and spans as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def span(seconds: float) -> str:
    """A time that has passed, in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def ago(moment: datetime, now: datetime) -> str:
    """How long ago that was, such as ``3 min ago``."""
    return f"{span((now - moment).total_seconds())} ago"


def shown(moment: datetime, now: datetime, *, utc: bool) -> str:
    """The local time, or UTC with its Z, and how long ago that was; the date where it is not today's."""
    zone = UTC if utc else None
    there, today = moment.astimezone(zone), now.astimezone(zone).date()
    date = "" if there.date() == today else f"{there:%Y-%m-%d} "
    return f"{date}{there:%H:%M:%S}{'Z' if utc else ''}, {ago(moment, now)}"
