"""What a run measured, and the picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CURVE_FILE: Final = "training.png"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The state of a run after a step; losses in nats per token."""

    step: int
    loss: float
    validation_loss: float


def can_draw() -> bool:
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
