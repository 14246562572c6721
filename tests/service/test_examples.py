"""Every program in ``examples/``, and every Python block of the README, as a user runs it: against a worker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from minilab_worker.worker import Worker
from support.client_process import environment
from support.waiting import LIMIT

from minilab_gen import result, submit, tail

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
README_BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)

StartWorker = Callable[..., Worker]


@pytest.fixture
def run(server_url: str, server: redis.Redis, start_worker: StartWorker) -> Callable[..., str]:
    """Run Python with these arguments while a worker serves; what it printed, once it ended well."""
    start_worker()

    def output_of(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment(server_url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=2 * LIMIT,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    return output_of


def answer_alone(prompt: str, max_new_tokens: int, temperature: float, seed: int) -> str:
    """The text that a job gives which nothing else runs beside."""
    job_id = submit(prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    list(tail(job_id))
    found = result(job_id)
    assert found is not None
    return found.text


def custom_ids(file: Path) -> list[str]:
    return sorted(json.loads(line)["custom_id"] for line in file.read_text(encoding="utf-8").splitlines())


def test_a_reader_who_left_and_came_back_has_the_whole_answer(run: Callable[..., str]) -> None:
    printed = run("examples/submit_and_tail.py")

    form = r"job \w+\n(.*) \[left after token 10.*?\] (.*)\nended: length, 40 tokens\n"
    parts = re.fullmatch(form, printed, re.DOTALL)
    assert parts
    assert "".join(parts.groups()) == answer_alone("Phileas Fogg", 40, 0.8, 7)


def test_each_of_many_jobs_gives_the_answer_that_it_gives_alone(run: Callable[..., str]) -> None:
    printed = run("examples/many_at_once.py").splitlines()

    assert len(printed) == 20
    for seed in (0, 13):
        text = "Le capitaine Nemo" + answer_alone("Le capitaine Nemo", 30, 0.9, seed)
        assert f"{seed:2}  length  {' '.join(text.split())}" in printed


def test_redis_and_rq_alone_give_the_same_answer(run: Callable[..., str]) -> None:
    printed = run("examples/plain_redis.py")

    assert printed == answer_alone("Phileas Fogg", 40, 0.8, 7) + "\nended: length\n"


def test_every_line_of_the_batch_has_its_answer(run: Callable[..., str], tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"

    run("-m", "minilab_client", "batch", "examples/batch.jsonl", "--output", str(answers), "--quiet")

    assert custom_ids(answers) == custom_ids(ROOT / "examples" / "batch.jsonl") != []


@pytest.mark.parametrize("block", README_BLOCKS)
def test_the_python_of_the_readme_runs_as_it_stands(run: Callable[..., str], block: str) -> None:
    assert run("-c", block).strip()


def test_no_example_is_left_untried() -> None:
    tried = Path(__file__).read_text(encoding="utf-8")

    assert [program.name for program in PROGRAMS if f'"examples/{program.name}"' not in tried] == []
