"""``python -m minilab_gen.bench``: both loops compute whole answers, and what is measured of them is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minilab_gen import bench
from minilab_gen.model import KernelModel, MiniLabModel, load, read_model


@pytest.fixture
def model(small_checkpoint: Path) -> KernelModel:
    return load(small_checkpoint, threads=1)


def test_the_module_for_lessons_has_the_model_in_both_forms(small_checkpoint: Path, model: KernelModel) -> None:
    in_torch = read_model(small_checkpoint)

    assert isinstance(in_torch, MiniLabModel)
    assert in_torch.config == model.config


def test_requests_are_the_same_in_every_run_and_fit_into_the_context(model: KernelModel) -> None:
    requests = bench.draw_requests(30, model.config)

    assert requests == bench.draw_requests(30, model.config)
    assert len({len(request.prompt) for request in requests}) > 5
    assert max(len(request.prompt) + request.max_new_tokens for request in requests) <= model.config.context_length
    assert {request.settings.is_greedy for request in requests} == {True}


@pytest.mark.parametrize(("at_once", "jobs"), [(1, 16), (4, 16), (64, 256)])
def test_a_run_has_enough_jobs_to_be_steady(at_once: int, jobs: int) -> None:
    assert bench.jobs_for(at_once) == jobs


def test_the_reference_loop_computes_whole_answers(model: KernelModel) -> None:
    requests = bench.draw_requests(3, model.config)

    run = bench.run_reference(model, requests)

    assert run.tokens == run.clock.tokens == sum(request.max_new_tokens for request in requests)
    assert len(run.clock.first_tokens) == 3
    assert run.seconds > sum(run.clock.gaps)


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_the_engine_computes_whole_answers_and_is_timed_while_jobs_are_still_added(
    model: KernelModel, at_once: int
) -> None:
    requests = bench.draw_requests(8, model.config)

    run = bench.run_engine(model, requests, at_once)

    assert run.clock.tokens == sum(request.max_new_tokens for request in requests)
    assert len(run.clock.first_tokens) == 8
    if at_once == 8:  # all are added at once, so there is no steady part
        assert run.tokens == run.clock.tokens
    else:
        assert 0 < run.tokens < run.clock.tokens
    assert run.seconds > 0


def test_the_command_reports_each_size_beside_the_loop_in_a_table_and_in_json(
    small_checkpoint: Path, tmp_path: Path
) -> None:
    numbers = tmp_path / "numbers.json"
    options = ["--rounds", "1", "--threads", "1", "--at-once", "4", "--at-once", "2", "--json", str(numbers)]

    done = CliRunner().invoke(bench.main, ["--model", str(small_checkpoint), *options])

    assert done.exit_code == 0, done.output
    head, _, *rows, foot = done.stdout.splitlines()
    assert [word in head for word in ("tokens/s", "gap ms", "times the loop")] == [True] * 3
    assert [row.split()[:2] for row in rows] == [["reference", "loop"], ["engine", "2"], ["engine", "4"]]
    assert foot == "Times are p50 / p99. 1 threads, 1 rounds, greedy, steady state."
    assert done.stderr.splitlines() == [
        "[1/3] the reference loop",
        "[2/3] the engine, 2 jobs at once",
        "[3/3] the engine, 4 jobs at once",
    ]
    written = json.loads(numbers.read_text())
    assert [(run["variant"], run["jobs_at_once"]) for run in written["runs"]] == [
        ("reference loop", 1), ("engine", 2), ("engine", 4),
    ]  # fmt: skip
    assert min(run["tokens_per_second"] for run in written["runs"]) > 0
    assert written["model"]["name"] == small_checkpoint.name
    assert written["machine"]["processor"]


def test_a_folder_without_a_model_is_an_error_in_a_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench.main, ["--model", str(tmp_path)])

    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert str(tmp_path) in done.stderr
