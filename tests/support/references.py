"""What ``generate`` alone answers, for tests of what a service answers. It holds no test."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from minilab_worker.serving import ServedModel

from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.generate import generate
from minilab_gen.protocol.events import Event, TokenEvent
from minilab_gen.request import GenerationRequest


def reference_ids(served: ServedModel, request: GenerationRequest) -> list[int]:
    steps = generate(
        served.model,
        request.prompt,
        request.max_new_tokens,
        request.settings,
        request.stop_ids,
        constraint=None if request.form is None else _compiler(served).start(request.form),
    )
    return [step.token_id for step in steps]


@cache
def _compiler(served: ServedModel) -> FormCompiler:
    return FormCompiler(served.tokenizer, served.card.vocab_size)


def reference_answers(served: ServedModel, requests: Iterable[GenerationRequest]) -> dict[GenerationRequest, list[int]]:
    """The same of many requests: once each, for it takes longer than a worker does for all."""
    return {request: reference_ids(served, request) for request in requests}


def ids_of(events: list[Event]) -> list[int]:
    return [event.token_id for event in events if isinstance(event, TokenEvent)]
