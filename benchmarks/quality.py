"""What each data type of the weights costs: bits per byte of a text, for float32, bfloat16 and int8.

``python benchmarks/quality.py BOOK --chapters 2``

The kernels predict the text as training measures held-out chapters, so that the number for float32 is the one in the
``training.json`` of a model that held out the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import torch
from torch import Tensor

from minilab_gen.bench import json_option, load_model, model_option
from minilab_gen.errors import MiniLabError
from minilab_gen.kernels.decoder import WEIGHT_TYPES, WeightType
from minilab_gen.measurement import Progress, facts, table, write_json
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer
from minilab_gen.training.corpus import read_corpus, token_row
from minilab_gen.training.quality import bits_per_byte

_LONGEST_WINDOW: Final = 1024
"""Tokens read at a time: the logits of more would take gigabytes where the vocabulary is large."""
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """What a data type gives."""

    dtype: WeightType
    bits_per_byte: float
    weight_mb: float

    def cells(self, first: float) -> list[str]:
        change = 100 * (self.bits_per_byte / first - 1)
        return [self.dtype, f"{self.bits_per_byte:.4f}", f"{change:+.2f}%", f"{self.weight_mb:.1f}"]


def read_text(file: Path, chapters: int | None, tokenizer: Tokenizer) -> tuple[Tensor, int]:
    """The ids of a text, of its last chapters or the whole of it, and its bytes."""
    if chapters is not None:
        held_out = read_corpus([file], chapters).held_out
        return token_row(held_out, tokenizer), len("".join(held_out).encode())
    text = file.read_text(encoding="utf-8")
    return torch.tensor(tokenizer.encode(text)), len(text.encode())


@click.command(context_settings={"show_default": True})
@click.argument("text", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@model_option
@click.option("--chapters", type=click.IntRange(min=1), help="Judge only so many last chapters.  [default: all text]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to compute with.  [default: one a core]")
@json_option
def main(text: Path, folder: Path, chapters: int | None, threads: int | None, json_file: Path | None) -> None:
    """Measure how well a checkpoint predicts TEXT with each data type of its weights.

    Example: python benchmarks/quality.py tour-du-monde.txt --chapters 2
    """
    progress = Progress(len(WEIGHT_TYPES))
    model = load_model(folder, threads)
    try:
        ids, size = read_text(text, chapters, get_tokenizer(folder))
    except (MiniLabError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{text}: {error}") from error
    window = min(model.config.context_length, _LONGEST_WINDOW)
    rows: list[Row] = []
    for dtype in WEIGHT_TYPES:
        progress.say(dtype)
        model = load_model(folder, threads, dtype)
        bits = bits_per_byte(model, ids, size, window)
        rows.append(Row(dtype, round(bits, 5), round(model.weight_bytes / _MILLION, 2)))
    progress.clear()
    head = ("weights", "bits per byte", "change", "MB")
    click.echo(table(head, [row.cells(rows[0].bits_per_byte) for row in rows]))
    click.echo(f"{size} bytes, {len(ids)} tokens, windows of {window}")
    content = {"benchmark": "quality", "bytes": size, "tokens": len(ids), "window": window}
    write_json(json_file, content | {"rows": [asdict(row) for row in rows]} | facts(folder, model))


if __name__ == "__main__":
    main()
