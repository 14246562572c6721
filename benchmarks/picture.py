"""The picture of tokens per second against jobs at once, from what ``throughput.py --json`` wrote.

It must not measure anything. ``python benchmarks/picture.py throughput.json``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

_LINES: Final = {"engine": ("engine alone", "o"), "service": ("whole service: Redis, RQ, streams", "s")}
"""Variant: how it is named, and its mark."""


def draw(measured: dict[str, Any], file: Path) -> None:
    """Draw a measurement of ``throughput.py`` into a PNG file."""
    runs: list[dict[str, Any]] = measured["runs"]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for variant, (label, marker) in _LINES.items():
        points = sorted((run["jobs_at_once"], run["tokens_per_second"]) for run in runs if run["variant"] == variant)
        axes.plot([at_once for at_once, _ in points], [rate for _, rate in points], marker=marker, label=label)
    alone = next(run["tokens_per_second"] for run in runs if run["variant"] == "reference loop")
    axes.axhline(alone, color="grey", linestyle="--", label="plain loop, one job after the other")
    _label(axes, sorted({run["jobs_at_once"] for run in runs}), measured)
    figure.savefig(file, dpi=110)


def _label(axes: Axes, sizes: list[int], measured: dict[str, Any]) -> None:
    millions = measured["model"]["parameters"] / 1e6
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    axes.set_ylim(bottom=0)
    axes.set(
        xlabel="jobs at once",
        ylabel="tokens per second",
        title=f"{measured['model']['name']} model, {millions:.1f}M parameters, {measured['threads']} threads",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


@click.command(context_settings={"show_default": True})
@click.argument("measured", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/throughput.png"),
    help="The PNG file to write.",
)
def main(measured: Path, output: Path) -> None:
    """Draw tokens per second against jobs at once from MEASURED, a file of throughput.py.

    Example: python benchmarks/picture.py throughput.json
    """
    try:
        content = json.loads(measured.read_text(encoding="utf-8"))
        draw(content, output)
    except (ValueError, KeyError, StopIteration) as error:
        raise click.ClickException(f"{measured} must be what throughput.py --json wrote: {error!r}") from error
    click.echo(output)


if __name__ == "__main__":
    main()
