"""``python -m chaos``: many seeds, one table."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import click

from chaos.checkpoint import write_slow_checkpoint, written_references
from chaos.http_load import all_requests
from chaos.report import table
from chaos.seed import Scale, Seed, SeedReport


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(1), default=20, help="How many runs.")
@click.option("--first", type=int, default=1, help="The first seed; the others follow it.")
@click.option("--seconds", type=click.FloatRange(0.1), default=Scale.seconds, help="Seconds of faults in each run.")
@click.option("--workers", type=click.IntRange(2), default=Scale.workers, help="Workers at the beginning.")
@click.option("--jobs", type=click.IntRange(1), default=Scale.jobs, help="Jobs in each run.")
@click.option("--logs", type=click.Path(path_type=Path), help="File for the workers' logs of runs that went wrong.")
def main(seeds: int, first: int, seconds: float, workers: int, jobs: int, logs: Path | None) -> None:
    """Break everything around a service under load, and check that no token is missing or doubled."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    scale = Scale(seconds=seconds, workers=workers, jobs=jobs)
    reports: list[SeedReport] = []
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        checkpoint = write_slow_checkpoint(Path(folder), chats=True)
        click.echo("Generating the expected answers ...", err=True)
        answers = written_references(checkpoint, all_requests())
        for seed in range(first, first + seeds):
            reports.append(Seed(seed, scale, checkpoint, answers).run())
            click.echo(f"seed {seed}: {len(reports[-1].findings.all)} findings", err=True)
            for finding in reports[-1].findings.all:
                click.echo(f"  {finding}", err=True)
    click.echo(table(reports))
    if logs is not None:
        logs.write_text("\n".join(f"===== seed {report.seed}\n{report.logs}" for report in reports), encoding="utf-8")
    sys.exit(1 if any(report.findings.all for report in reports) else 0)


if __name__ == "__main__":
    main()
