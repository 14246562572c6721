"""Bits per byte of a text, as jobs that score prompts: what evaluation tools do, beside what training measures.

``python benchmarks/scoring.py BOOK --chapters 2``

The text is cut into the windows of ``quality.py``. Each is a job that asks for no token and for the logprobs of its
prompt, submitted to a worker process on a private server.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import redis
from quality import read_text
from service import private_redis, worker
from torch import Tensor

from minilab_gen.bench import json_option, load_model, model_option
from minilab_gen.errors import MiniLabError
from minilab_gen.logprobs import PromptLogprobs
from minilab_gen.measurement import facts, table, write_json
from minilab_gen.protocol.results import read_prompt_logprobs
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer
from minilab_gen.training.quality import bits_per_byte

_LONGEST_WINDOW: Final = 1024
"""Tokens of a job's prompt: those of ``quality.py``."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some ids of the text, and how many of the first are there for the others to follow."""

    ids: tuple[int, ...]
    known: int

    def nats(self, listed: PromptLogprobs) -> float:
        return -sum(one.logprob for one in listed[self.known :] if one is not None)


def windows(row: Tensor, size: int) -> Iterator[Window]:
    """Each judged id has half a window before it, but those of the text's first half window."""
    judged = 1
    while judged < len(row):
        start = max(0, judged - size // 2)
        ids = tuple(row[start : start + size + 1].tolist())
        yield Window(ids, judged - start)
        judged = start + len(ids)


def scored(connection: redis.Redis, cut: Sequence[Window]) -> float:
    """The nats of all windows, each a job of its own. Raises MiniLabError where one has no answer."""
    jobs = [enqueue(connection, GenerationRequest(each.ids, 0, prompt_logprobs=0), Submission()) for each in cut]
    nats = 0.0
    for each, job_id in zip(cut, jobs, strict=True):
        for _ in tail(connection, job_id):
            pass
        listed = read_prompt_logprobs(connection, job_id)
        if listed is None:
            raise MiniLabError(f"the job {job_id} must have the logprobs of its prompt, got none")
        nats += each.nats(listed)
    return nats


@click.command(context_settings={"show_default": True})
@click.argument("text", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@model_option
@click.option("--chapters", type=click.IntRange(min=1), help="Judge only so many last chapters.  [default: all text]")
@click.option("--max-batch", type=click.IntRange(min=1), default=64, help="Slots of the worker.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to compute with.  [default: found by a trial]")
@json_option
def main(
    text: Path, folder: Path, chapters: int | None, max_batch: int, threads: int | None, json_file: Path | None
) -> None:
    """Have a worker judge TEXT and compare with what training measures.

    Example: python benchmarks/scoring.py tour-du-monde.txt --chapters 2
    """
    model = load_model(folder, threads)
    try:
        ids, size = read_text(text, chapters, get_tokenizer(folder))
        window = min(model.config.context_length - 1, _LONGEST_WINDOW)  # and one more id, which is judged
        cut = list(windows(ids, window))
        with private_redis() as connection, worker(connection, folder, max_batch, threads):
            began = time.perf_counter()
            bits = scored(connection, cut) / math.log(2) / size
            seconds = time.perf_counter() - began
    except (MiniLabError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{text}: {error}") from error
    wanted = bits_per_byte(model, ids, size, window)
    rows = [["jobs that score their prompts", f"{bits:.6f}"], ["logits, as in training", f"{wanted:.6f}"]]
    click.echo(table(("measured by", "bits per byte"), rows))
    rate = sum(len(each.ids) for each in cut) / seconds
    click.echo(f"{size} bytes, {len(ids)} tokens, {len(cut)} jobs of up to {window + 1}: {rate:.0f} tokens per second")
    content = {"benchmark": "scoring", "bytes": size, "tokens": len(ids), "window": window, "jobs": len(cut)}
    figures = {"bits_per_byte": bits, "bits_per_byte_of_logits": wanted, "tokens_per_second": rate}
    write_json(json_file, content | figures | facts(folder, model))


if __name__ == "__main__":
    main()
