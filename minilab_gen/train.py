"""Training of the base model: ``python -m minilab_gen.train --corpus FILE... --output DIR``.

A run is a function of its settings: every step draws its windows and its
dropout from a seed made of the run's seed and the step, so a run that was killed and resumed ends at the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from minilab_gen.errors import MiniLabError, RequestError
from minilab_gen.models.checkpoint import write_checkpoint
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, train_tokenizer
from minilab_gen.training.corpus import Corpus, read_corpus, token_row
from minilab_gen.training.quality import bits_per_byte

__all__ = ["BASE_CHECKPOINT", "TrainSettings", "main", "train"]

_STATE_FILE = "training-state.pt"
_CURVE_FILE = "training.png"
_SEED_STRIDE = 1_000_003  # a prime above any step count, so that no two (seed, step) share a generator


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What a run depends on, besides the books."""

    seed: int = 0
    steps: int = 2800
    batch: int = 32
    """Windows in a step."""
    vocab_size: int = 2048
    held_out_chapters: int = 2
    learning_rate: float = 3e-3
    warmup: int = 200
    """Steps over which the learning rate rises; then it falls to a hundredth along a cosine."""
    weight_decay: float = 0.1
    dropout: float = 0.15
    clip: float = 1.0
    """Largest norm of the gradient."""
    report_every: int = 100
    """Steps between two measurements of the validation loss, and between two savings of the state."""
    model: ModelConfig = field(default_factory=ModelConfig)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True, slots=True)
class Measurement:
    """The state of a run after a step; losses in nats per token."""

    step: int
    loss: float
    validation_loss: float


class Trainer:
    """A run in progress: model, optimiser, and what was measured so far."""

    def __init__(self, settings: TrainSettings, corpus: Corpus, output: Path) -> None:
        self.settings, self.output = settings, output
        self.tokenizer = train_tokenizer(corpus.books[0], settings.vocab_size)
        self._tokens = token_row(corpus.training_chapters, self.tokenizer)
        self._held_out = token_row(corpus.held_out, self.tokenizer)
        for name, row in (("training", self._tokens), ("held-out", self._held_out)):
            if len(row) <= settings.model.context_length:
                raise RequestError(
                    f"the {name} text must hold more than {settings.model.context_length} tokens, got {len(row)}"
                )
        self._held_out_bytes = len("".join(corpus.held_out).encode())
        torch.manual_seed(settings.seed)
        self.model = MiniLabModel(settings.model, dropout=settings.dropout)
        self._optimizer = torch.optim.AdamW(self._parameter_groups(), betas=(0.9, 0.95), fused=True)
        self.step = 0
        self.history: list[Measurement] = []
        self._identity = self._hash_of_the_run()

    def run(self) -> Iterator[float]:
        """Train to the end, yielding the loss of each step; saves what it has at every report."""
        losses: list[float] = []
        while self.step < self.settings.steps:
            losses.append(self._train_step())
            self.step += 1
            if self.step % self.settings.report_every == 0 or self.step == self.settings.steps:
                mean = sum(losses) / len(losses)
                self.history.append(Measurement(self.step, mean, self.validation_loss()))
                losses.clear()
                self._save_state()
            yield losses[-1] if losses else self.history[-1].loss

    def resume(self) -> bool:
        """Take up the state that a killed run of the same settings and books left, if there is one.

        The number of steps may differ: the learning rate follows the new schedule from there, so a run that shows its
        best can be told to come to its end.
        """
        file = self.output / _STATE_FILE
        if not file.exists():
            return False
        state = torch.load(file, weights_only=True)
        if state["identity"] != self._identity:
            return False
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.history = [Measurement(**row) for row in state["history"]]
        return True

    def finish(self) -> None:
        """Write the checkpoint, its record and, where it can be drawn, its curve; drop the saved state."""
        write_checkpoint(self.output, self.model, self.tokenizer)
        record = {
            "settings": asdict(self.settings),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "training_tokens": len(self._tokens),
            "held_out_bits_per_byte": round(self.held_out_bits_per_byte(), 4),
            "history": [asdict(row) for row in self.history],
        }
        (self.output / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if _can_draw():
            draw_curve(self.history, self.output / _CURVE_FILE)
        else:  # one of an earlier run would show other losses than the record beside it
            (self.output / _CURVE_FILE).unlink(missing_ok=True)
        (self.output / _STATE_FILE).unlink(missing_ok=True)

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean nats per token over the held-out text, in windows of a whole context that do not overlap."""
        length = self.settings.model.context_length
        count = (len(self._held_out) - 1) // length
        ids = self._held_out[: count * length].view(count, length)
        targets = self._held_out[1 : count * length + 1].view(count, length)
        self.model.eval()
        _, loss = self.model(ids, targets)
        self.model.train()
        return float(loss)

    def held_out_bits_per_byte(self) -> float:
        """Bits per byte of the held-out text; every token is judged with at least half a context before it."""
        length = self.settings.model.context_length
        return bits_per_byte(self.model.eval(), self._held_out, self._held_out_bytes, length)

    def _train_step(self) -> float:
        ids, targets = self._windows()
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate_at(self.step)
        with torch.autocast("cpu", torch.bfloat16):
            _, loss = self.model(ids, targets)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self._optimizer.step()
        return float(loss.detach())

    def _windows(self) -> tuple[Tensor, Tensor]:
        """This step's windows of tokens and the tokens after them, both (batch, context)."""
        torch.manual_seed(self.settings.seed * _SEED_STRIDE + self.step)
        length = self.settings.model.context_length
        starts = torch.randint(len(self._tokens) - length, (self.settings.batch, 1))
        positions = starts + torch.arange(length + 1)
        windows = self._tokens[positions]
        return windows[:, :-1], windows[:, 1:]

    def _parameter_groups(self) -> list[dict[str, object]]:
        weights = [p for p in self.model.parameters() if p.dim() > 1]
        scales = [p for p in self.model.parameters() if p.dim() == 1]
        return [
            {"params": weights, "weight_decay": self.settings.weight_decay},
            {"params": scales, "weight_decay": 0.0},
        ]

    def _save_state(self) -> None:
        state = {
            "identity": self._identity,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "history": [asdict(row) for row in self.history],
        }
        draft = self.output / (_STATE_FILE + ".part")
        torch.save(state, draft)
        draft.replace(self.output / _STATE_FILE)

    def _hash_of_the_run(self) -> str:
        settings = {name: value for name, value in asdict(self.settings).items() if name != "steps"}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        digest.update(self._tokens.numpy().tobytes())
        digest.update(self._held_out.numpy().tobytes())
        return digest.hexdigest()


def train(settings: TrainSettings, corpus: Corpus, output: Path, console: Console) -> Trainer:
    """Run or take up a training with a progress display, and write the checkpoint."""
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings, corpus, output)
    if trainer.resume():
        console.print(f"taking up the run in {output} after step {trainer.step}")
    if not _can_draw():
        console.print(
            f"matplotlib is not installed, so no {_CURVE_FILE} will be drawn; training.json records the losses. "
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


def _can_draw() -> bool:
    """Whether matplotlib, which only the extra ``[train]`` brings, can be imported."""
    try:
        import matplotlib.figure  # noqa: F401 - only training draws, and it is slow to import
    except ImportError:
        return False
    return True


def draw_curve(history: list[Measurement], file: Path) -> None:
    """Draw training and validation loss against steps into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    steps = [row.step for row in history]
    axes.plot(steps, [row.loss for row in history], label="training")
    axes.plot(steps, [row.validation_loss for row in history], label="held-out chapters")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title="MiniLab base model")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=110)


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
