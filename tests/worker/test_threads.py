"""How many threads a worker takes: those that it may have, and of these those that it gains from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from minilab_worker.threads import quickest, try_threads
from support.small_models import kernel_model

from minilab_gen.kernels import processors as module
from minilab_gen.kernels.processors import processors
from minilab_gen.models.checkpoint import load
from minilab_gen.text.tokenizer import BASE_CHECKPOINT


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups without a limit, on a machine of 8 processors."""
    monkeypatch.setattr(module, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(module, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "own").write_text("0::/a.slice/b.scope\n")
    (tmp_path / "a.slice" / "b.scope").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 0.6}, 2),
        ({1: 1.0, 2: 0.95}, 1),  # not worth a core
        ({1: 1.0, 2: 1.5}, 1),
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),
        ({1: 1.0, 2: 1.1, 4: 0.5}, 4),
    ],
)
def test_more_threads_are_taken_only_where_they_gain_a_tenth(seconds: dict[int, float], best: int) -> None:
    assert quickest(seconds) == best


@pytest.mark.parametrize(("most", "tried"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_a_trial_tries_up_to_the_most(most: int, tried: list[int]) -> None:
    trial = try_threads(kernel_model(), rows=64, most=most)

    assert list(trial.seconds) == tried
    assert trial.threads == quickest(trial.seconds)
    assert str(trial).startswith(f"{trial.threads} of {most} threads, because a step takes ")


def test_without_a_quota_all_processors_of_the_affinity_count(groups: Path) -> None:
    assert processors() == 8
    (groups / "a.slice" / "cpu.max").write_text("max 100000\n")
    assert processors() == 8


@pytest.mark.parametrize(("quota", "count"), [("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)])
@pytest.mark.parametrize("group", [".", "a.slice", "a.slice/b.scope"])
def test_a_quota_of_a_group_or_of_one_around_it_counts(groups: Path, group: str, quota: str, count: int) -> None:
    (groups / group / "cpu.max").write_text(f"{quota}\n")

    assert processors() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("300000", 3)])
def test_a_quota_of_the_first_version_of_control_groups_counts(groups: Path, quota: str, count: int) -> None:
    (groups / "own").write_text("5:cpu,cpuacct:/docker\n4:memory:/elsewhere\n")
    (groups / "cpu" / "docker").mkdir(parents=True)
    (groups / "cpu" / "docker" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (groups / "cpu" / "docker" / "cpu.cfs_period_us").write_text("100000\n")

    assert processors() == count


def test_a_trial_takes_no_more_threads_than_the_quota(groups: Path) -> None:
    (groups / "cpu.max").write_text("300000 100000\n")

    assert max(try_threads(kernel_model(), rows=4).seconds) == 3


def test_a_model_computes_with_all_processors_that_it_may_use(groups: Path) -> None:
    (groups / "cpu.max").write_text("300000 100000\n")

    assert load(BASE_CHECKPOINT).threads == 3
