"""What ``minilab-client doctor`` finds: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """How one thing stands."""

    level: Level
    check: str
    """What was looked at."""
    found: str
    remedy: str = ""
    """What to do about it; empty where all is well."""


def ok(check: str, found: str) -> Finding:
    return Finding("ok", check, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    return Finding("warn", check, found, remedy)


def fail(check: str, found: str, remedy: str) -> Finding:
    return Finding("fail", check, found, remedy)
