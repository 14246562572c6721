"""Draws a snapshot with rich, at any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from minilab_client.times import span
from minilab_client.watching.layout import Layout, Rows
from minilab_client.watching.renderables import CELLS, Cropped, columns, plot
from minilab_client.watching.snapshot import WINDOW, ModelLine, RunningJob, Snapshot, Speed, WorkerLine, clock, number

_WIDE: Final = 70
"""Columns from which on more than the necessary fits."""

_ID_CELLS: Final = 16
"""Cells of a job id: one that was drawn has as many characters."""

_LABEL_CELLS: Final = 12
"""Cells beside the plot."""

_BAR_CELLS: Final = 10
"""Cells of the bar that shows how many of a worker's slots are in use."""

_REASON_STYLES: Final = {"cancelled": "yellow", "timeout": "red", "error": "red", "failed": "red"}


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot under its title: a renderable that fills the width of the screen and at most its height."""

    snapshot: Snapshot | None
    """None where no look has succeeded yet."""
    title: str
    trouble: str | None = None
    """Why the last look failed, if it did; the snapshot is then an older one."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        height = options.height or options.size.height
        lines = self._lines(console, options.update(height=None), height)
        for line in lines[:height]:
            yield from line
            yield Segment.line()

    def _lines(self, console: Console, options: ConsoleOptions, height: int) -> list[list[Segment]]:
        lines = console.render_lines(_heading(self), options, pad=False)
        if self.snapshot is None:
            return lines
        rows = Layout(height).rows(self.snapshot.counts)
        for part in _parts(self.snapshot, rows, options):
            lines += [[]] if rows.spacious else []
            lines += console.render_lines(part, options, pad=False)
        return lines


def _parts(snapshot: Snapshot, rows: Rows, options: ConsoleOptions) -> Iterator[RenderableType]:
    wide = options.max_width >= _WIDE
    bar = "=-" if options.ascii_only else "━─"
    yield _models(snapshot.models[: rows.models], snapshot.counts.models, wide)
    yield _speed(snapshot.speed, rows.plot, options)
    yield _workers(snapshot, rows.workers, bar if wide else None)
    yield _running(snapshot, rows.running, wide)
    yield _ended(snapshot, rows.ended, wide)


def _heading(view: View) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(ratio=1)
    line.add_column(justify="right")
    seen = clock(view.snapshot.taken_at) if view.snapshot else ""
    if view.trouble is None:
        line.add_row(Cropped(view.title, "bold"), Text(seen, style="bold"))
    else:
        since = f" since {seen}" if seen else ""
        line.add_row(Cropped(f"Redis is away{since}, asking again: {view.trouble}", "bold red"), "")
    return line


def _table(*, expand: bool = False) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=expand)


def _number_columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _title(name: str, *remarks: str) -> Cropped:
    return Cropped(": ".join([name, ", ".join(filter(None, remarks))]) if any(remarks) else name, "bold")


def _models(models: Sequence[ModelLine], count: int, wide: bool) -> Table:
    table = _table()
    table.add_column(_title("queue", f"{len(models)} of {count}" if len(models) < count else ""))
    _number_columns(table, "high", "normal", "low", "running")
    if wide:
        _number_columns(table, "done", "failed", "cancelled")
    for model in models:
        waiting = (_figure(jobs, "bold yellow") for jobs in (model.high, model.normal, model.low))
        ended = (_figure(model.done), _figure(model.failed, "red"), _figure(model.cancelled))
        table.add_row(Cropped(model.name), *waiting, _figure(model.running), *(ended if wide else ()))
    if not count:
        table.add_row(Cropped("no job yet", "dim"))
    return table


def _figure(jobs: int, style: str = "") -> Text:
    return Text(number(jobs), style=style if jobs else "")


def _speed(speed: Speed, rows: int, options: ConsoleOptions) -> RenderableType:
    cells = max(1, min(CELLS, options.max_width - _LABEL_CELLS))
    has_remarks = options.max_width >= _LABEL_CELLS + cells + _ID_CELLS
    values = columns(speed, cells)
    grid = Table.grid(padding=0)
    for width in (_LABEL_CELLS, cells + 2 if has_remarks else cells, None):
        grid.add_column(width=width, no_wrap=True)
    remarks = _remarks(speed, values) if has_remarks else ("", "", "")
    lines = plot(values, rows, ascii_only=options.ascii_only)
    for label, line, remark in zip(_labels(speed, rows), lines, remarks, strict=False):
        grid.add_row(label, line, Cropped(remark, "dim"))
    return grid


def _labels(speed: Speed, rows: int) -> Iterator[Text]:
    now = ("-" if speed.now is None else number(speed.now), "bold cyan")
    if rows == 1:
        yield Text.assemble(("tok/s ", "bold"), now)
        return
    yield Text("tokens/s", "bold")
    yield Text(*now)
    yield Text(f"last {min(WINDOW, speed.watched):.0f} s" if speed.watched else "", "dim")


def _remarks(speed: Speed, values: Sequence[float | None]) -> tuple[str, str, str]:
    top = max((value for value in values if value is not None), default=0)
    return f"up to {number(top)}" if top else "", "", "since you came" if 0 < speed.watched < WINDOW else ""


def _workers(snapshot: Snapshot, rows: int, bar: str | None) -> Table:
    fleet, workers = snapshot.fleet, snapshot.workers[:rows]
    table = _table()
    gone = f"{number(fleet.gone)} gone" if fleet.gone else ""
    shown = f"{len(workers)} shown" if len(workers) < len(snapshot.workers) else ""
    table.add_column(_title("workers", f"{number(fleet.up)} up", gone, shown))
    _number_columns(table, "slots", *([""] if bar else []), "tokens/s", *(["model", "up for"] if bar else []))
    for worker in workers:
        table.add_row(*_worker_cells(worker, snapshot.taken_at, bar))
    if not snapshot.workers:
        table.add_row(Cropped("start one: minilab-worker", "yellow"))
    return table


def _worker_cells(worker: WorkerLine, now: float, bar: str | None) -> Iterator[RenderableType]:
    reported = worker.used is not None and worker.slots is not None
    yield Cropped(worker.name, "" if worker.alive else "red")
    yield f"{number(worker.used or 0)}/{number(worker.slots or 0)}" if reported else "-"
    if bar:
        yield _bar(worker.used or 0, worker.slots or 0, *bar)
    speed = "-" if worker.tokens_per_second is None else number(worker.tokens_per_second)
    yield Text(speed, "cyan") if worker.alive else Text("gone", "bold red")
    if bar:
        yield Cropped(worker.model)
        yield span(now - worker.started_at) if worker.alive and worker.started_at else "-"


def _bar(used: int, slots: int, filled: str, empty: str) -> Text:
    full = min(_BAR_CELLS, -(-_BAR_CELLS * used // slots)) if slots > 0 else 0
    return Text.assemble((filled * full, "cyan"), (empty * (_BAR_CELLS - full), "bright_black"))


def _running(snapshot: Snapshot, rows: int, wide: bool) -> Table:
    jobs = snapshot.running[:rows]
    table = _job_table("running", wide)
    shown = f", {len(jobs)} shown" if len(jobs) < snapshot.counts.running else ""
    table.add_column(Cropped(f"{_jobs(snapshot.counts.running)}{shown}"), ratio=1)
    for job in jobs:
        table.add_row(Cropped(job.job_id), number(job.tokens), _growing(job))
    return table


def _growing(job: RunningJob) -> Cropped:
    if job.worker_gone:
        return Cropped(f"{job.text} [its worker is gone]", "yellow", shows_end=True)
    return Cropped(job.text, shows_end=True)


def _ended(snapshot: Snapshot, rows: int, wide: bool) -> Table:
    table = _job_table("ended", wide)
    table.add_column("why")
    if wide:
        table.add_column("at", no_wrap=True)
    table.add_column(Cropped(f"{_jobs(snapshot.counts.ended)} in a day"), ratio=1)
    for job in snapshot.ended[:rows]:
        why = Cropped(job.reason, "green" if job.succeeded else _REASON_STYLES.get(job.reason, ""))
        at = [clock(job.ended_at)] if wide else []
        table.add_row(Cropped(job.job_id), number(job.tokens), why, *at, Cropped(job.error, "red"))
    return table


def _jobs(count: int) -> str:
    return f"{number(count)} job{'' if count == 1 else 's'}"


def _job_table(title: str, wide: bool) -> Table:
    table = _table(expand=True)
    table.add_column(_title(title), width=_ID_CELLS if wide else _ID_CELLS // 2)
    _number_columns(table, "tokens")
    return table
