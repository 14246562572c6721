"""Whether a checkpoint's greedy answers here are those that transformers would give, token for token, in float32.

The engine runs all prompts together, and transformers then reads each prompt and answer
and says which token it would have chosen at every position. It needs the package transformers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import torch
from smollm2 import FOLDER
from torch import Tensor

from minilab_gen.engine import Engine, Sequence
from minilab_gen.models.checkpoint import load
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

_SEED: Final = 20_261_129
_DOCUMENTS: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A prompt, what the engine answered, and the logits that each token was chosen from."""

    prompt: tuple[int, ...]
    tokens: list[int]
    logits: Tensor


def prompts(tokenizer: Tokenizer, count: int, shortest: int, longest: int) -> list[tuple[int, ...]]:
    """Pieces of this project's own documents, each from the start of a line, of lengths spread evenly."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(_DOCUMENTS.glob("**/*.md")))
    lines = text.splitlines()
    dice = random.Random(_SEED)
    chosen = []
    for number in range(count):
        length = shortest + number * (longest - shortest) // max(1, count - 1)
        start = dice.randrange(len(lines) // 2)
        chosen.append(tuple(tokenizer.encode("\n".join(lines[start : start + 200]).lstrip())[:length]))
    return chosen


def answers(folder: Path, asked: list[tuple[int, ...]], new_tokens: int) -> list[EngineAnswer]:
    """All prompts together through the engine, greedy."""
    seen: dict[str, list[Tensor]] = {}
    engine = Engine(load(folder), len(asked), on_logits=lambda s, row: seen.setdefault(s.name, []).append(row.clone()))
    sequences = [Sequence(str(number), GenerationRequest(prompt, new_tokens)) for number, prompt in enumerate(asked)]
    for sequence in sequences:
        engine.add(sequence)
    while engine.has_work:
        engine.step()
    return [
        EngineAnswer(
            sequence.request.prompt, sequence.ids[len(sequence.request.prompt) :], torch.stack(seen[sequence.name])
        )
        for sequence in sequences
    ]


@torch.no_grad()
def their_logits(folder: Path, given: list[EngineAnswer]) -> Iterator[Tensor]:
    """What transformers computes at the position of each token of each answer, (tokens, vocab)."""
    import transformers  # which takes seconds, and after it there is little memory to spare

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for answer in given:
        ids = torch.tensor([[*answer.prompt, *answer.tokens[:-1]]])
        yield model(ids).logits[0, len(answer.prompt) - 1 :, : answer.logits.shape[1]]


@click.command(context_settings={"show_default": True})
@click.option("--model", "folder", type=click.Path(path_type=Path), default=FOLDER, help="Checkpoint folder.")
@click.option("--prompts", "count", type=click.IntRange(1, 256), default=32, help="How many.")
@click.option("--shortest", type=click.IntRange(1), default=5, help="Tokens of the first of them.")
@click.option("--longest", type=click.IntRange(1), default=200, help="Tokens of the last of them.")
@click.option("--new-tokens", type=click.IntRange(1), default=64, help="Tokens of each answer.")
def main(folder: Path, count: int, shortest: int, longest: int, new_tokens: int) -> None:
    """Compare greedy answers with those of transformers. Exits with 1 where a token differs."""
    asked = prompts(get_tokenizer(folder), count, shortest, longest)
    given = answers(folder, asked, new_tokens)
    different, gap = 0, 0.0
    for answer, theirs in zip(given, their_logits(folder, given), strict=True):
        different += int((theirs.argmax(-1) != torch.tensor(answer.tokens)).sum())
        gap = max(gap, float((theirs - answer.logits).abs().max()))
    tokens = sum(len(answer.tokens) for answer in given)
    lengths = f"{min(map(len, asked))} to {max(map(len, asked))}"
    click.echo(f"{folder.name}: {count} prompts of {lengths} tokens, {tokens} greedy tokens, {different} of them")
    click.echo(f"differ from transformers', and no logit by more than {gap:.1e}")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
