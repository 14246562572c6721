"""Answers that must be JSON of a schema: whether they are valid, and what they cost those beside them.

``python benchmarks/structured.py [--model FOLDER] [--jobs 300]`` asks a chat model at temperature 1 for JSON of thirty
schemas, validates with jsonschema what ended by itself, and then measures a batch in which half of the jobs have a
schema against one in which none has.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
import jsonschema
from structured_schemas import SCHEMAS

from minilab_gen.answer_form import AnswerForm
from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.engine import Chosen, Ended, Engine, Sequence
from minilab_gen.models.checkpoint import load
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.source import checkpoint_of
from minilab_gen.request import GenerationRequest, SamplingSettings
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, Tokenizer

_MODEL: Final = Path("~/.cache/minilab-models/SmolLM2-135M-Instruct").expanduser()
_CHECKER: Final = jsonschema.Draft202012Validator.FORMAT_CHECKER
"""Of this draft: the one for all drafts takes ``time`` for that of the third, without a time zone."""

_ANSWER_TOKENS: Final = 300
_LONG: Final = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3},
            "age": {"type": "integer"},
            "ok": {"type": "boolean"},
        },
        "required": ["name", "age", "ok"],
        "additionalProperties": False,
    },
}
"""One of which no answer comes to the end, so that both batches have the same number of tokens."""


def form_of(schema: object) -> AnswerForm:
    form = AnswerForm.of({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    assert form is not None, "a schema is a form"
    return form


class Asked:
    """A model with what it is asked."""

    def __init__(self, folder: Path) -> None:
        checkpoint = checkpoint_of(folder)
        self.model: KernelModel = load(folder)
        self.tokenizer: Tokenizer = checkpoint.tokenizer()
        self.compiler = FormCompiler(self.tokenizer, self.model.config.vocab_size)
        self._chat, self.stop_ids = checkpoint.chat_format(), tuple(checkpoint.stop_ids())

    def prompt(self, text: str) -> tuple[int, ...]:
        if self._chat is None:
            return tuple(self.tokenizer.encode("Phileas Fogg"))
        return tuple(self._chat.prompt(Conversation.of(text), self.tokenizer))

    def run(self, requests: Iterable[GenerationRequest], max_batch: int) -> tuple[dict[str, Ended], float]:
        """The ends, and tokens per second from the second step on."""
        engine, ends = Engine(self.model, max_batch), {}
        for number, request in enumerate(requests):
            constraint = None if request.form is None else self.compiler.start(request.form)
            engine.add(Sequence(str(number), request, constraint=constraint))
        engine.step()
        start, tokens = time.perf_counter(), 0
        while engine.has_work:
            for outcome in engine.step():
                if isinstance(outcome, Ended):
                    ends[outcome.sequence.name] = outcome
                tokens += isinstance(outcome, Chosen)
        return ends, tokens / (time.perf_counter() - start)


def check_answers(asked: Asked, jobs: int) -> bool:
    """Whether all answers that ended by themselves are valid; prints how all of them ended."""
    names = [name for number, name in zip(range(jobs), list(SCHEMAS) * jobs, strict=False) if number < jobs]
    requests = [
        GenerationRequest(
            asked.prompt(f"Invent an example of: {name}. Answer in JSON."),
            _ANSWER_TOKENS,
            SamplingSettings(temperature=1.0, seed=number),
            asked.stop_ids,
            form=form_of(SCHEMAS[name]),
        )
        for number, name in enumerate(names)
    ]
    ends, _ = asked.run(requests, 32)
    invalid = 0
    for number, name in enumerate(names):
        end = ends[str(number)]
        if end.reason == "stop" and (why := _fault(asked, end, SCHEMAS[name])):
            invalid += 1
            print(f"{name}: {why}")
    print(f"ends: {dict(Counter(end.reason for end in ends.values()))}; not valid: {invalid}")
    return not invalid and all(end.error is None for end in ends.values())


def _fault(asked: Asked, end: Ended, schema: Any) -> str | None:
    request = end.sequence.request
    ids = [token for token in end.sequence.ids[len(request.prompt) :] if token != end.stop_id]
    text = asked.tokenizer.decode(ids)
    validator = jsonschema.Draft202012Validator(schema, format_checker=_CHECKER)
    try:
        validator.validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r}: {str(error).splitlines()[0]}"
    return None


def compare_speed(asked: Asked, jobs: int, tokens: int) -> None:
    """Print tokens per second where none, half and all of the jobs have a schema: the best of three runs."""
    prompt, form = asked.prompt("Invent some people. Answer in JSON."), form_of(_LONG)
    best: dict[float, float] = {}
    for share in (0, 0.5, 1) * 3:
        requests = [
            GenerationRequest(
                prompt,
                tokens,
                SamplingSettings(temperature=1.0, seed=number),
                form=form if number < jobs * share else None,
            )
            for number in range(jobs)
        ]
        best[share] = max(best.get(share, 0.0), asked.run(requests, jobs)[1])
    rest = ", ".join(f"{share:.0%} with a schema {best[share] / best[0]:.2f}" for share in (0.5, 1))
    print(f"{jobs} jobs: {best[0]:.0f} tokens/s; {rest}")


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), default=_MODEL, show_default=True)
@click.option("--jobs", default=300, show_default=True)
def main(model: Path, jobs: int) -> None:
    """Check and measure answers with schemas."""
    asked = Asked(model)
    valid = check_answers(asked, jobs)
    compare_speed(asked, 16, 60)
    compare_speed(Asked(BASE_CHECKPOINT), 64, 100)
    raise SystemExit(0 if valid else 1)


if __name__ == "__main__":
    main()
