"""The same work for every peer: one checkpoint in float32, and jobs whose prompts are texts of that model's own."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from peer_protocol import Job

from minilab_gen.engine import Engine, Sequence
from minilab_gen.models.checkpoint import load, read_model, write_checkpoint
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest, SamplingSettings
from minilab_gen.text.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, get_tokenizer

_SEED = 20
"""Any number: it fixes the jobs, so that two runs of the benchmark ask for the same."""

_FEWEST_JOBS = 8
"""Of a round: half a second of one job at a time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How many jobs are handed over at once, and between which lengths; both ends belong to a range."""

    at_once: int
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]

    @property
    def jobs(self) -> int:
        """Jobs of a round: few at once are followed by others, so that a round takes long enough to be timed."""
        return self.at_once * -(-_FEWEST_JOBS // self.at_once)

    @property
    def max_tokens(self) -> int:
        """Prompt and answer of the longest job that can come up."""
        return self.prompt_tokens[1] + self.new_tokens[1]


def write_float32_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint, its weights widened to float32: every peer reads this one, so none rounds on its way in."""
    tokenizer = get_tokenizer(source)
    write_checkpoint(target, read_model(source), tokenizer)
    # Converters want to be told which class reads a bare tokenizer.json, and CTranslate2 which token ends a text.
    described = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.token_id(END_OF_TEXT) is not None:
        described |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    (target / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")


def draw_jobs(checkpoint: Path, workload: Workload) -> list[Job]:
    """Jobs of random lengths, the longest of which must fit the model's context."""
    model = load(checkpoint)
    numbers = random.Random(_SEED)
    prompts = [numbers.randint(*workload.prompt_tokens) for _ in range(workload.jobs)]
    answers = [numbers.randint(*workload.new_tokens) for _ in range(workload.jobs)]
    first_ids = [numbers.randrange(len(SPECIAL_TOKENS), model.config.vocab_size) for _ in prompts]
    texts = _write_texts(model, first_ids, max(prompts))
    return [Job(text[:length], answer) for text, length, answer in zip(texts, prompts, answers, strict=True)]


def _write_texts(model: KernelModel, first_ids: list[int], length: int) -> list[list[int]]:
    """A text of ``length`` ids after each first id, drawn at temperature 1: what the model believes texts are like."""
    engine = Engine(model, len(first_ids))
    sequences = []
    for number, first in enumerate(first_ids):
        settings = SamplingSettings(temperature=1.0, seed=number)
        sequences.append(Sequence(str(number), GenerationRequest((first,), length, settings)))
        engine.add(sequences[-1])
    while engine.has_work:
        engine.step()
    return [sequence.ids[:length] for sequence in sequences]
