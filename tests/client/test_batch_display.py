"""How far a batch is: speed and time left from what ended lately, shown as the place that reads it can show it."""

from __future__ import annotations

import pytest
from minilab_client.batch.display import LINE_SECONDS, Lines, Silence, display
from minilab_client.batch.tally import WINDOW_SECONDS, Pace, Tally


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_speed_is_that_of_the_last_seconds_and_not_of_the_whole_run() -> None:
    clock, tally = Clock(), Tally(total=1000)
    pace = Pace(clock)
    for second in range(100):
        clock.now += 1
        speed = 1 if second < 100 - WINDOW_SECONDS else 4
        tally.answered += speed
        tally.tokens += 10 * speed
        pace.take(tally)

    assert pace.tokens_per_second == pytest.approx(40)
    assert pace.seconds_left(tally) == pytest.approx((1000 - tally.done) / 4)


def test_answers_of_earlier_runs_are_done_but_say_nothing_about_the_speed() -> None:
    clock, tally = Clock(), Tally(total=1000)
    pace = Pace(clock)
    tally.kept = 900
    tally.answered, tally.tokens, clock.now = 10, 100, 110.0

    pace.take(tally)

    assert pace.seconds_left(tally) == pytest.approx(90)


@pytest.mark.parametrize("tally", [Tally(total=None, answered=5, tokens=50), Tally(total=10, kept=5)])
def test_the_time_left_is_unknown_where_nothing_tells_it(tally: Tally) -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.now += 5
    pace.take(tally)

    assert pace.seconds_left(tally) is None


def test_where_stderr_is_no_terminal_a_line_comes_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock, tally = Clock(), Tally(total=2000, refused=1)
    lines = Lines(clock)
    for _ in range(20):
        clock.now += LINE_SECONDS / 10
        tally.answered += 50
        tally.tokens += 500
        lines.show(tally)

    first, second = capsys.readouterr().err.splitlines()
    assert first == "501 of 2,000 done, 1 failed, 500 tokens/s, 0:00:30 left"
    assert second.startswith("1,001 of 2,000 done, 1 failed, ")


def test_quiet_shows_nothing() -> None:
    with display(quiet=True) as shown:
        assert isinstance(shown, Silence)
