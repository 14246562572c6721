"""The model that chaos runs serve: small enough to start in a second, deep enough that a job lasts one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.generate import generate
from minilab_gen.kernels.logprobs import logprobs_at
from minilab_gen.models.checkpoint import load
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.torch_checkpoint import write_checkpoint
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

CONTEXT = 128
VOCABULARY = 2048

_CONFIG = ModelConfig(
    vocab_size=VOCABULARY,
    context_length=CONTEXT,
    n_layer=24,  # with plain kernels, a step of eight jobs takes some 20 ms of one core
    n_head=8,
    n_kv_head=1,
    d_model=64,
    d_hidden=64,
    tied_embeddings=False,  # random tied ones repeat their last token for ever
)


TEMPLATE: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Of a chat: its prompt is what was said, and nothing more."""


def write_slow_checkpoint(folder: Path, n_layer: int = _CONFIG.n_layer, *, chats: bool = False) -> Path:
    """A checkpoint folder with random weights, wide enough that its answers vary; the slower the more layers."""
    model = MiniLabModel(replace(_CONFIG, n_layer=n_layer))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=2 * weight.shape[1] ** -0.5, generator=generator)
    write_checkpoint(folder, model, get_tokenizer())
    if chats:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")
    return folder


Answers = dict[GenerationRequest, list[TokenEvent]]
"""By request."""


def written_references(checkpoint: Path, requests: Iterable[GenerationRequest]) -> Answers:
    """What ``generate`` answers to each request alone, up to its stop text, as a worker writes it."""
    model = load(checkpoint, threads=1)  # more only get into each other's way with matrices this small
    return {request: _answer(model, request) for request in requests}


def references(checkpoint: Path, requests: Iterable[GenerationRequest]) -> dict[GenerationRequest, list[int]]:
    """The same, ids alone."""
    written = written_references(checkpoint, requests)
    return {request: [event.token_id for event in events] for request, events in written.items()}


def _answer(model: KernelModel, request: GenerationRequest) -> list[TokenEvent]:
    transcript = Transcript(request, get_tokenizer())
    compiler = FormCompiler(get_tokenizer(), model.config.vocab_size)
    constraint = None if request.form is None else compiler.start(request.form)
    settings, stop_ids = request.settings, request.stop_ids
    events: list[TokenEvent] = []
    for step in generate(model, request.prompt, request.max_new_tokens, settings, stop_ids, constraint=constraint):
        logits = step.logits.contiguous()
        listed = None
        if request.logprobs is not None:
            listed = logprobs_at(logits.data_ptr(), len(logits), step.token_id, request.logprobs)
        events.append(transcript.add(step.token_id, listed))
        if transcript.has_stopped():
            break
    return events
