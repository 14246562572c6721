"""How a watch draws what it has seen: at every size, with any text, for any terminal. No Redis here."""

from __future__ import annotations

import io
import re
import unicodedata
from dataclasses import replace

import pytest
from minilab_client.watching.drawing import View
from minilab_client.watching.layout import Layout
from minilab_client.watching.renderables import Cropped, columns, plot
from minilab_client.watching.snapshot import (
    Counts,
    EndedJob,
    Fleet,
    ModelLine,
    RunningJob,
    Snapshot,
    Speed,
    SpeedSample,
    WorkerLine,
)
from rich.cells import cell_len
from rich.console import Console

NOON = 1_800_000_000.0

CHINESE = "菲利亚·福克先生" * 30
ARABIC = "فيلياس فوج رجل دقيق " * 20
FAMILY = "👩‍👩‍👧‍👦🇫🇷" * 60
ACCENTS = "e\N{COMBINING ACUTE ACCENT}" * 300
FRENCH = "« Monsieur, dit-il, il faut que vous ayez raison », répondit le gentleman, et il regarda la mer. " * 3

SIZES = [(40, 24), (80, 24), (200, 60), (80, 10), (20, 8), (3, 3), (1, 1)]


def busy() -> Snapshot:
    """A service with much of everything, and with text of all kinds."""
    texts = (FRENCH, CHINESE, ARABIC, FAMILY, ACCENTS, "", "short")
    running = [RunningJob(f"{n:016x}", n, text, worker_gone=n == 6) for n, text in enumerate(texts)]
    workers = [WorkerLine(f"minilab-host-{n}", "base", n > 0, 3 * n, 64, 250.4 * n, NOON - 80) for n in range(20)]
    return Snapshot(
        taken_at=NOON,
        models=(ModelLine("base", 5, 112, 100_000, 64, 1204, 3, 1), ModelLine("m" * 64, 1, 2, 3)),
        fleet=Fleet(up=19, gone=1, used=64, slots=1280),
        workers=(*workers, WorkerLine("an-ordinary-one", "base", alive=True)),
        running=tuple(running),
        ended=(
            EndedJob("a", NOON, "stop", succeeded=True, tokens=17),
            EndedJob("b" * 128, NOON, "error", succeeded=False, error=f"non-finite\nlogits {FRENCH}"),
            EndedJob("c", NOON, "cancelled", succeeded=False, tokens=2),
        ),
        speed=speed(range(70, 100)),
        counts=Counts(models=2, workers=21, running=64, ended=1208),
    )


def speed(seconds: range) -> Speed:
    """A speed of so many tokens per second as the clock shows, with a look a second."""
    samples = tuple(SpeedSample(float(second), float(second)) for second in seconds)
    return Speed(now=99.0, samples=samples, began_at=seconds[0] - 1.0, looked_at=float(seconds[-1]))


def drawn(
    snapshot: Snapshot | None, width: int = 80, height: int = 24, trouble: str | None = None, encoding: str = "utf-8"
) -> list[str]:
    """The lines of a view, without colours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(View(snapshot, "the title", trouble))
    return re.sub(r"\x1b\[[0-9;]*m", "", capture.get()).splitlines()


def line_with(word: str, lines: list[str]) -> str:
    (line,) = (line for line in lines if word in line)
    return line


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_no_line_is_wider_than_the_screen_and_no_view_is_higher(width: int, height: int) -> None:
    lines = drawn(busy(), width, height)

    assert len(lines) <= height
    assert [line for line in lines if cell_len(line) > width] == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_an_outage_and_an_empty_service_fit_as_well(width: int, height: int) -> None:
    for lines in (drawn(None, width, height, FRENCH), drawn(Snapshot(NOON), width, height), drawn(None, width, height)):
        assert len(lines) <= height
        assert [line for line in lines if cell_len(line) > width] == []


def test_a_screen_shows_queues_workers_jobs_and_ends() -> None:
    lines = drawn(busy(), 100, 40)

    assert line_with("base      ", lines[:5]).split() == ["base", "5", "112", "100", "000", "64", "1", "204", "3", "1"]
    assert "19 up, 1 gone" in line_with("workers", lines)
    assert line_with("minilab-host-5", lines).split()[1:] == ["15/64", "━━━───────", "1", "252", "base", "1", "min"]
    assert "gone" in line_with("minilab-host-0", lines)
    assert "64 jobs, 7 shown" in line_with("running  ", lines[5:])
    assert line_with(f"{0:016x}", lines).endswith("répondit le gentleman, et il regarda la mer.")
    assert "short [its worker is gone]" in line_with(f"{6:016x}", lines)
    assert line_with("stop", lines).split()[:3] == ["a", "17", "stop"]
    assert "non-finite logits « Monsieur" in line_with("error", lines)
    assert line_with("cancelled  ", lines[20:]).split()[:3] == ["c", "2", "cancelled"]


def test_forty_columns_still_tell_what_matters() -> None:
    lines = drawn(busy(), 40, 24)

    assert line_with("base ", lines).split() == ["base", "5", "112", "100", "000", "64"]
    assert "tokens/s" in "".join(lines[4:7])
    assert lines[lines.index(line_with("running ", lines[5:])) + 1].endswith("la mer.")
    assert "stop" in "".join(lines)


def test_a_service_with_nothing_says_how_to_begin() -> None:
    shown = "\n".join(drawn(Snapshot(NOON)))

    assert "no job yet" in shown
    assert "start one: minilab-worker" in shown


def test_what_a_stranger_wrote_cannot_reach_the_terminal_as_a_control() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\x00\u2028\u202e\u2066end"
    snapshot = replace(
        busy(),
        models=(ModelLine(evil),),
        workers=(WorkerLine(evil, evil, alive=True),),
        running=(RunningJob(evil, 1, evil),),
        ended=(EndedJob(evil, NOON, evil, succeeded=False, error=evil),),
    )

    for lines in (drawn(snapshot, 200, 40), drawn(snapshot, 200, 40, trouble=evil)):
        unprintable = {
            letter for line in lines for letter in line if unicodedata.category(letter) in ("Cc", "Cf", "Zl")
        }
        assert unprintable == set()
        assert any("end" in line for line in lines)


def test_during_an_outage_the_view_says_so_and_from_when_it_is() -> None:
    lines = drawn(busy(), 120, 30, trouble="Connection refused.")

    assert re.match(r"Redis is away since \d\d:\d\d:\d\d, asking again: Connection refused", lines[0])
    assert len(lines) == len(drawn(busy(), 120, 30))


def test_a_terminal_with_ascii_alone_is_sent_nothing_else_of_ours() -> None:
    snapshot = replace(busy(), running=(RunningJob("x", 1, "plain " * 99),), ended=(), models=(ModelLine("m" * 64),))

    lines = drawn(snapshot, encoding="ascii")

    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_colours_are_left_out_where_they_are_not_wanted(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def colours() -> list[str]:
        console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
        with console.capture() as capture:
            console.print(View(busy(), "the title"))
        return re.findall(r"\x1b\[(?:\d+;)*[349]\d(?:;\d+)*m", capture.get())

    assert colours() != []
    monkeypatch.setenv(variable, "1" if variable == "NO_COLOR" else "dumb")
    assert colours() == []


@pytest.mark.parametrize("text", [FRENCH, CHINESE, ARABIC, FAMILY, ACCENTS])
@pytest.mark.parametrize("shows_end", [True, False])
def test_cropped_text_fills_its_room_and_keeps_whole_characters(text: str, shows_end: bool) -> None:
    console = Console(file=io.StringIO(), width=40, color_system=None)
    for width in range(1, 40):
        with console.capture() as capture:
            console.print(Cropped(text, shows_end=shows_end), width=width)
        shown = capture.get()

        assert width - 1 <= cell_len(shown) <= width
        kept = shown.removeprefix("…") if shows_end else shown.removesuffix("…")
        whole = " ".join(text.split())
        assert whole.endswith(kept) if shows_end else whole.startswith(kept)
        assert not unicodedata.combining((kept or "x")[0])


@pytest.mark.parametrize("height", range(1, 80))
def test_the_parts_share_no_more_lines_than_there_are(height: int) -> None:
    for counts in (Counts(), Counts(1, 1, 3, 2), Counts(1, 1, 500, 500), Counts(50, 1000, 0, 9), Counts(9, 9, 9, 0)):
        rows = Layout(height).rows(counts)
        blank = 5 if rows.spacious else 0
        parts = max(1, rows.models) + max(1, rows.workers) + rows.running + rows.ended

        assert min(rows.models, rows.workers, rows.running, rows.ended) >= 0
        assert parts + rows.plot + blank + 5 <= max(height, rows.plot + blank + 7)


def test_a_room_that_is_large_enough_shows_everything() -> None:
    rows = Layout(60).rows(Counts(models=2, workers=5, running=20, ended=10))

    assert (rows.models, rows.workers, rows.running, rows.ended) == (2, 5, 20, 10)


def test_a_plot_shows_each_second_of_the_last_minute() -> None:
    assert columns(speed(range(1, 100)), 60) == [float(second) for second in range(40, 100)]


def test_a_narrow_plot_shows_means() -> None:
    assert columns(speed(range(1, 100)), 30)[:3] == [40.5, 42.5, 44.5]


def test_what_was_before_the_watch_began_is_not_known() -> None:
    assert columns(speed(range(90, 100)), 60) == [None] * 49 + [90.0, *(float(second) for second in range(90, 100))]


def test_a_speed_found_after_a_while_holds_for_all_of_it() -> None:
    seldom = Speed(30.0, (SpeedSample(50.0, 10.0), SpeedSample(60.0, 30.0)), began_at=40.0, looked_at=60.0)

    assert columns(seldom, 60)[-21:] == [10.0] * 11 + [30.0] * 10


def test_a_plot_without_a_sample_is_unknown_throughout() -> None:
    assert columns(Speed(None, (), 5.0, 5.0), 7) == [None] * 7


def test_a_plot_stands_on_its_lowest_row_and_reaches_its_highest() -> None:
    top, bottom = (line.plain for line in plot([None, 0.0, 8.0, 12.0, 16.0], rows=2))

    assert top == "   ▄█"
    assert bottom == "·▁███"
