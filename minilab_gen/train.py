"""Training of the base model: ``python -m minilab_gen.train --corpus FILE... --output DIR``."""

from __future__ import annotations

from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from minilab_gen.errors import MiniLabError
from minilab_gen.models.config import ModelConfig
from minilab_gen.training.corpus import Corpus, read_corpus
from minilab_gen.training.curve import CURVE_FILE, can_draw
from minilab_gen.training.trainer import Trainer, TrainSettings


def train(settings: TrainSettings, corpus: Corpus, output: Path, console: Console) -> Trainer:
    """Run or take up a training with a progress display, and write the checkpoint."""
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings, corpus, output)
    if trainer.resume():
        console.print(f"taking up the run in {output} after step {trainer.step}")
    if not can_draw():
        console.print(
            f"matplotlib is not installed, so no {CURVE_FILE} will be drawn; training.json records the losses. "
            "To have it: pip install matplotlib",
            soft_wrap=True,
        )
    columns = (
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps  {task.description}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    tokens_per_step = settings.batch * settings.model.context_length
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=settings.steps, completed=trainer.step)
        for loss in trainer.run():
            speed = (progress.tasks[bar].speed or 0.0) * tokens_per_step
            checked = f"{trainer.history[-1].validation_loss:.3f}" if trainer.history else "-"
            text = f"loss {loss:.3f}  validation loss {checked}  {speed:,.0f} tokens/s"
            progress.update(bar, completed=trainer.step, description=text)
            if not console.is_terminal and trainer.step % settings.report_every == 0:
                console.print(f"{trainer.step}/{settings.steps} steps  {text}")
    trainer.finish()
    return trainer


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DEFAULTS = TrainSettings()


@click.command(context_settings={"show_default": True})
@click.option("--corpus", "first", type=_FILE, required=True, help="Books as text; the first is what it is about.")
@click.argument("more", nargs=-1, type=_FILE)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="Checkpoint folder.")
@click.option("--steps", type=click.IntRange(min=1), default=_DEFAULTS.steps, help="Training steps.")
@click.option("--batch", type=click.IntRange(min=1), default=_DEFAULTS.batch, help="Windows in a step.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=_DEFAULTS.seed, help="Seed of the whole run.")
@click.option("--vocab-size", type=click.IntRange(min=260), default=_DEFAULTS.vocab_size, help="Token ids.")
@click.option(
    "--hold-out", type=click.IntRange(min=1), default=_DEFAULTS.held_out_chapters, help="Last chapters held out."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads; by default one for each core.")
def main(
    first: Path,
    more: tuple[Path, ...],
    output: Path,
    steps: int,
    batch: int,
    seed: int,
    vocab_size: int,
    hold_out: int,
    threads: int | None,
) -> None:
    """Train a small model on books: --corpus FILE [FILE ...] --output DIR.

    A run that was killed goes on where it last saved when it is started again with the same words; only --steps may
    differ, and then the learning rate comes down to its end by the new number.
    """
    if threads:
        torch.set_num_threads(threads)
    model = ModelConfig(vocab_size=vocab_size)
    settings = TrainSettings(
        seed=seed, steps=steps, batch=batch, vocab_size=vocab_size, held_out_chapters=hold_out, model=model
    )
    console = Console(stderr=True)
    try:
        trainer = train(settings, read_corpus([first, *more], hold_out), output, console)
    except MiniLabError as error:
        raise click.ClickException(str(error)) from error
    score = trainer.held_out_bits_per_byte()
    click.echo(f"{output}: {score:.3f} bits per byte on the held-out chapters")


if __name__ == "__main__":
    main()
