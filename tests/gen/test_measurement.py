"""What benchmarks make of the times they take."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from minilab_gen.measurement import (
    Percentiles,
    Progress,
    RunResult,
    Summary,
    TokenClock,
    peak_memory,
    ratio,
    table,
    write_json,
)

NO_PROCESS = 2**30


def a_run(tokens: int, seconds: float, peak_bytes: int | None = None) -> RunResult:
    clock = TokenClock()
    clock.ask("a", 10.0)
    for number in range(3):
        clock.take("a", 10.5 + number)
    return RunResult(tokens, seconds, clock, peak_bytes)


def test_a_first_token_counts_from_asking_and_the_others_from_the_one_before() -> None:
    clock = TokenClock()
    clock.ask("a", 1.0)
    clock.ask("b", 2.0)
    for job, now in [("a", 1.5), ("b", 4.0), ("a", 1.75)]:
        clock.take(job, now)

    assert (clock.first_tokens, clock.gaps, clock.tokens) == ([0.5, 2.0], [0.25], 3)


@pytest.mark.parametrize(
    ("milliseconds", "p50", "p99"),
    [(range(1, 101), 50, 99), ([7], 7, 7), ([3, 1, 2], 2, 3), (range(1, 1001), 500, 990)],
)
def test_a_percentile_is_one_of_the_times(milliseconds: list[int], p50: float, p99: float) -> None:
    found = Percentiles.of(each / 1000 for each in milliseconds)

    assert (found.p50, found.p99) == (p50, p99)
    assert found.to_json() == {"p50": p50, "p99": p99}


def test_a_summary_has_the_median_pace_all_times_and_the_lowest_peak() -> None:
    runs = [a_run(100, 1.0, 7_000_000), a_run(100, 2.0, 5_000_000), a_run(100, 4.0)]

    summary = Summary.of(runs)

    assert summary.cells() == ["50", "500.00 / 500.00", "1000.00 / 1000.00", "5"]
    assert summary.to_json() == {
        "tokens_per_second": 50.0,
        "first_token_ms": {"p50": 500.0, "p99": 500.0},
        "gap_ms": {"p50": 1000.0, "p99": 1000.0},
        "peak_mb": 5,
    }


def test_a_peak_that_no_system_told_is_a_dash() -> None:
    assert Summary.of([a_run(1, 1.0)]).cells()[-1] == "-"


def test_runs_are_compared_with_those_beside_them() -> None:
    quick, slow = [a_run(8, 1.0), a_run(4, 1.0), a_run(2, 1.0)], [a_run(4, 1.0), a_run(2, 1.0), a_run(1, 1.0)]

    assert ratio(quick, slow) == 2.0


def test_this_process_has_a_peak_and_one_that_is_not_there_has_none() -> None:
    own = peak_memory()

    assert own is not None
    assert own > 1_000_000
    assert peak_memory(NO_PROCESS) is None


def test_a_table_has_its_names_flush_left_and_its_numbers_flush_right() -> None:
    assert table(["", "pace"], [["loop", "1"], ["engine", "10"]]) == (
        "        pace\n------------\nloop       1\nengine    10"
    )


def test_on_a_terminal_progress_is_one_line_that_is_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress(2)

    progress.say("the loop")
    progress.say_again("the loop, half")
    progress.clear()

    shown = capsys.readouterr().err
    assert "\n" not in shown
    assert [part.rstrip() for part in shown.split("\r")] == ["", "[1/2] the loop", "[1/2] the loop, half", "", ""]


def test_elsewhere_progress_is_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(2)

    progress.say("the loop")
    progress.say("the engine")
    progress.clear()

    assert capsys.readouterr().err == "[1/2] the loop\n[2/2] the engine\n"


def test_numbers_are_written_where_a_file_is_named_and_never_as_nan(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    write_json(None, {"a": 1})
    write_json(file, {"a": 1})

    assert json.loads(file.read_text()) == {"a": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": float("nan")})
