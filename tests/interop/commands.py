"""The commands that docs/operations.md gives for each tool, as they are typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

_DOCUMENT: Final = Path(__file__).parent.parent.parent / "docs" / "operations.md"
_HEADING: Final = "## RQ and Redis tools"


def documented(program: str, redis_url: str, job_id: str = "") -> list[list[str]]:
    """The words of each command of a program, with the address and the job filled in."""
    _, heading, after = _DOCUMENT.read_text(encoding="utf-8").partition(f"{_HEADING}\n")
    assert heading, f"{_DOCUMENT} must have the heading {_HEADING!r}"
    (block,) = re.findall(r"^```sh\n(.*?)^```", after.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    filled_in = block.replace("$MINILAB_REDIS_URL", redis_url).replace("JOB", job_id)
    commands = [shlex.split(line, comments=True) for line in filled_in.splitlines()]
    found = [words for words in commands if words and words[0] == program]
    assert found, f"{_HEADING!r} must show a command of {program}"
    return found
