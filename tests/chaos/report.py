"""What a chaos run came to, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chaos.faults import KINDS
from chaos.seed import SeedReport

_COLUMNS = (
    "seed",
    "jobs",
    *KINDS,
    "streams",
    "resumes",
    "retries",
    "takeovers",
    "dropped",
    "given up",
    "again",
    "settled",
    "lost",
    "doubled",
    "different",
    "left",
)


def table(reports: Sequence[SeedReport]) -> str:
    """One line for each seed, and their sum."""
    rows = [list(_COLUMNS), *(_row(str(report.seed), [report]) for report in reports), _row("all", reports)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(name: str, reports: Sequence[SeedReport]) -> list[str]:
    faults = sum((report.faults for report in reports), Counter[str]())
    found = [report.findings for report in reports]
    counts = [
        sum(report.jobs for report in reports),
        *(faults[kind] for kind in KINDS),
        sum(report.http_streams for report in reports),
        sum(report.http_resumes for report in reports),
        sum(report.http_retries for report in reports),
        sum(report.takeovers for report in reports),
        sum(report.zombies for report in reports),
        sum(report.given_up for report in reports),
        sum(report.submitted_again for report in reports),
    ]
    wrong = [
        sum(len(findings.lost) for findings in found),
        sum(len(findings.doubled) for findings in found),
        sum(len(findings.different) for findings in found),
        sum(len(findings.left) for findings in found),
    ]
    settled = f"{max((report.settled_after for report in reports), default=0.0):.1f} s"
    return [name, *map(str, counts), settled, *map(str, wrong)]
