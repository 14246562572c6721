"""How far a batch is: speed and time left from what ended lately, as a bar or in lines."""

from __future__ import annotations

import pytest
from minilab_client.batch.progress import LINE_SECONDS, WINDOW_SECONDS, Counters, Lines, Rate, Silence, display


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_speed_is_that_of_the_last_seconds_and_not_of_the_whole_run() -> None:
    clock, counters = Clock(), Counters(total=1000)
    rate = Rate(clock)
    for second in range(100):
        clock.now += 1
        speed = 1 if second < 100 - WINDOW_SECONDS else 4
        counters.answered += speed
        counters.tokens += 10 * speed
        rate.take(counters)

    assert rate.tokens_per_second == pytest.approx(40)
    assert rate.seconds_left(counters) == pytest.approx((1000 - counters.done) / 4)


def test_answers_of_earlier_runs_are_done_but_say_nothing_about_the_speed() -> None:
    clock, counters = Clock(), Counters(total=1000)
    rate = Rate(clock)
    counters.kept = 900
    counters.answered, counters.tokens, clock.now = 10, 100, 110.0

    rate.take(counters)

    assert rate.seconds_left(counters) == pytest.approx(90)


@pytest.mark.parametrize("counters", [Counters(total=None, answered=5, tokens=50), Counters(total=10, kept=5)])
def test_the_time_left_is_unknown_until_a_job_ends(counters: Counters) -> None:
    clock = Clock()
    rate = Rate(clock)
    clock.now += 5
    rate.take(counters)

    assert rate.seconds_left(counters) is None


def test_where_stderr_is_no_terminal_a_line_comes_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock, counters = Clock(), Counters(total=2000, refused=1)
    lines = Lines(clock)
    for _ in range(20):
        clock.now += LINE_SECONDS / 10
        counters.answered += 50
        counters.tokens += 500
        lines.show(counters)

    first, second = capsys.readouterr().err.splitlines()
    assert first == "501 of 2,000 done, 1 failed, 500 tokens/s, 0:00:30 left"
    assert second.startswith("1,001 of 2,000 done, 1 failed, ")


def test_quiet_shows_nothing() -> None:
    with display(quiet=True) as shown:
        assert isinstance(shown, Silence)
