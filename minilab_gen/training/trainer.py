"""A training run, which is a function of its settings.

Every step draws its windows and its dropout from a seed made of the run's seed and the step, so a run that was killed
and resumed ends at the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from minilab_gen.errors import RequestError
from minilab_gen.models.checkpoint import write_checkpoint
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.text.tokenizer import train_tokenizer
from minilab_gen.training.corpus import Corpus, token_row
from minilab_gen.training.curve import CURVE_FILE, Measurement, can_draw, draw_curve
from minilab_gen.training.quality import bits_per_byte

_STATE_FILE = "training-state.pt"
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
        if can_draw():
            draw_curve(self.history, self.output / CURVE_FILE)
        else:  # one of an earlier run would show other losses than the record beside it
            (self.output / CURVE_FILE).unlink(missing_ok=True)
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
