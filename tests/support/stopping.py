"""Where an answer ends by its stop texts, by looking at the whole of it. It must not hold a test."""

from __future__ import annotations

from collections.abc import Sequence


def stopped(text: str, stops: Sequence[str], *, include: bool = False) -> tuple[str, str | None]:
    """What is shown of a text, and the stop text that ended it: the one that is complete first, else the longest."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return text, None
    end, start, stop = min(found)
    return text[: end if include else start], stop
