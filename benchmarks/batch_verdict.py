"""Whether a batch gave each line what it must: its answer once, that of the reference loop, or its reason once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batch_workload import BadLine, GoodLine
from workload import RandomJob, Reference, answer_all

from minilab_gen.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Given:
    """An answer in the output."""

    ids: tuple[int, ...]
    seed: int | None


def read_output(file: Path) -> dict[str, list[Given]]:
    """What the output holds for each custom_id. Raises ValueError where a line is none."""
    given: dict[str, list[Given]] = {}
    for line in file.read_bytes().splitlines():
        record: dict[str, Any] = json.loads(line)
        body = record["response"]["body"] if "response" in record else None
        ids = body["choices"][0]["token_ids"] if body else record["ids"]
        found = Given(tuple(ids), (body or record)["seed"])
        given.setdefault(record["custom_id"], []).append(found)
    return given


def count_wrong_answers(
    folder: Path, good: Sequence[GoodLine], given: dict[str, list[Given]], say: Callable[[str], None]
) -> int:
    """Good lines that do not have exactly one answer, or not that of the reference loop."""
    asked = {line.custom_id: _with_seed(line, given) for line in good}
    distinct = list(dict.fromkeys(asked.values()))
    jobs = [RandomJob("", request, 0.0, None) for request in distinct]
    expected: dict[GenerationRequest, tuple[int, ...]] = {}
    for answers in answer_all(Reference(folder), jobs, sample_every=len(jobs)):
        begun = len(expected)
        expected |= zip(distinct[begun : begun + len(answers)], (answer.tokens for answer in answers), strict=True)
        say(f"the reference has answered {len(expected):,} of {len(distinct):,} requests")
    return sum([found.ids for found in given.get(name, [])] != [expected[asked[name]]] for name in asked)


def count_wrong_errors(file: Path, bad: dict[int, BadLine]) -> int:
    """Lines of the error file that are missing, too many, or about another line; ``bad`` is by line number."""
    records = [json.loads(line) for line in file.read_bytes().splitlines()]
    found = [(record["line"], record["custom_id"], record["error"]["code"]) for record in records]
    expected = [(number, line.custom_id, "refused") for number, line in sorted(bad.items())]
    return len(set(found) ^ set(expected)) + len(found) - len(set(found))


def _with_seed(line: GoodLine, given: dict[str, list[Given]]) -> GenerationRequest:
    """What was asked, with the seed that the client reports where the line named none."""
    found = given.get(line.custom_id, [])
    if line.names_seed or not found or found[0].seed is None:
        return line.request
    return replace(line.request, settings=replace(line.request.settings, seed=found[0].seed))
