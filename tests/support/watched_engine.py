"""An engine under watch, requests for it, and the answers that the reference gives to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from minilab_gen.engine import Chosen, Ended, Engine, Sequence
from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import Decoder, WeightType
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GREEDY, GenerationRequest, SamplingSettings
from support.small_models import EIGHT_TO_ONE, SHAPES, kernel_model

BeforeStep = Callable[[list[int]], None]
AfterStep = Callable[[list[int], list[int]], list[int]]

CONTEXT = EIGHT_TO_ONE.context_length
HOT = SamplingSettings(temperature=1.0, seed=42)


@cache
def model_of(shape: str = "8:1", weights: WeightType = "float32") -> KernelModel:
    return kernel_model(SHAPES[shape], weights)


@dataclass(frozen=True)
class ReferenceAnswer:
    """The tokens after a prompt, and the logits that each was chosen from."""

    tokens: list[int]
    logits: list[Tensor]


def alone(request: GenerationRequest, model: KernelModel | None = None, *, use_cache: bool = True) -> ReferenceAnswer:
    """The answer of the reference loop."""
    model = model or model_of()
    steps = list(
        generate(model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids, use_cache=use_cache)
    )
    return ReferenceAnswer([step.token_id for step in steps], [step.logits for step in steps])


class _StandInDecoder:
    """A decoder around whose steps something is done."""

    def __init__(self, decoder: Decoder, before: BeforeStep | None, after: AfterStep | None) -> None:
        self._decoder, self._before, self._after = decoder, before, after
        self.release = decoder.release

    def run(
        self, ids: list[int], slots: list[int], positions: list[int], output_rows: list[int], **named: Any
    ) -> list[int]:
        if self._before is not None:
            self._before(ids)
        tokens = self._decoder.run(ids, slots, positions, output_rows, **named)
        return tokens if self._after is None else self._after(tokens, [slots[row] for row in output_rows])


def stand_in(model: KernelModel, *, before: BeforeStep | None = None, after: AfterStep | None = None) -> KernelModel:
    """A model that tells ``before`` the ids that a step reads, and asks ``after`` what was chosen in each slot."""

    class StandIn:
        config, threads = model.config, model.threads
        __call__ = model.__call__

        def decoder(self, slots: int, threads: int | None = None) -> Any:
            return _StandInDecoder(model.decoder(slots, threads), before, after)

    return cast(KernelModel, StandIn())


class Watched:
    """An engine and what came out of it. Tokens must come as 1, 2, 3, ..., and nothing after the end."""

    def __init__(
        self, model: KernelModel | None = None, max_batch: int = 4, *, kernels_refuse: bool = False, **named: Any
    ) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logits: dict[str, list[Tensor]] = {}
        self.ends: dict[str, str] = {}
        self.errors: dict[str, str | None] = {}
        self.poison: dict[str, int] = {}
        """The logits of these are no numbers at this token."""
        self.started: list[str] = []
        self._sequences: list[Sequence] = []
        poisoned = stand_in(model or model_of(), after=self._poison)
        self.engine = Engine(poisoned, max_batch, on_logits=self._see, **named)
        if not kernels_refuse:
            # What the kernels refuse is then raised: no step may need a second try.
            self.engine._read_and_choose = lambda chunks: (self.engine._read(chunks), [])  # type: ignore[method-assign]

    def add(self, name: str, request: GenerationRequest, answered: list[int] | None = None) -> Sequence:
        sequence = Sequence(name, request, answered or ())
        self.engine.add(sequence)
        self.tokens[name], self.logits[name] = [], []
        self._sequences.append(sequence)
        return sequence

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for outcome in self.engine.step():
                self._record(outcome)

    def run(self) -> Watched:
        """Step until all have ended, and check that the engine is idle."""
        while self.engine.has_work:
            self.step()
        self.engine.check_idle()
        return self

    def _see(self, sequence: Sequence, row: Tensor) -> None:
        self.logits[sequence.name].append(row.clone())

    def _poison(self, tokens: list[int], slots: list[int]) -> list[int]:
        by_slot = {sequence.slot: sequence for sequence in self._sequences if sequence.slot is not None}
        chosen = zip(tokens, (by_slot[slot] for slot in slots), strict=True)
        return [-1 if self.poison.get(each.name) == each.tokens + 1 else token for token, each in chosen]

    def _record(self, outcome: Chosen | Ended) -> None:
        name = outcome.sequence.name
        assert name not in self.ends, f"{name} has ended"
        if isinstance(outcome, Ended):
            self.ends[name], self.errors[name] = outcome.reason, outcome.error
            return
        if not self.tokens[name]:
            self.started.append(name)
        self.tokens[name].append(outcome.token_id)
        assert outcome.number == outcome.sequence.tokens


def assert_equal(watched: Watched, name: str, expected: ReferenceAnswer) -> None:
    """Tokens are the same and logits the same bits."""
    assert watched.tokens[name] == expected.tokens
    pairs = zip(watched.logits[name], expected.logits, strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def assert_equal_alone(watched: Watched, requests: dict[str, GenerationRequest], model: KernelModel) -> None:
    for name, request in requests.items():
        assert_equal(watched, name, alone(request, model))


def request_of(
    length: int = 3, max_new_tokens: int = 8, settings: SamplingSettings = GREEDY, stop_ids: tuple[int, ...] = ()
) -> GenerationRequest:
    """A request with a prompt of this many ids, different ones for each length."""
    return GenerationRequest(
        tuple((index * 7 + length) % 60 for index in range(length)), max_new_tokens, settings, stop_ids
    )


def random_requests(count: int, seed: int = 0) -> dict[str, GenerationRequest]:
    pick = random.Random(seed)
    return {
        f"job-{number}": GenerationRequest(
            prompt=tuple(pick.randrange(60) for _ in range(pick.choice([1, 2, 3, 7, 8, 15, 16, 17, 24, 31]))),
            max_new_tokens=pick.choice([1, 2, 5, 9, 1000]),
            settings=SamplingSettings(
                temperature=pick.choice([0.0, 0.7, 1.0, 1.5]),
                top_k=pick.choice([None, 2, 20]),
                top_p=pick.choice([None, 0.5, 0.9]),
                seed=pick.randrange(2**32),
            ),
            stop_ids=tuple(pick.sample(range(60), pick.choice([0, 1, 8]))),
        )
        for number in range(count)
    }


def run_all(watched: Watched, requests: dict[str, GenerationRequest], seed: int = 0) -> Watched:
    """Let requests arrive a few at a time, while others run."""
    pick, coming = random.Random(seed), list(requests.items())
    while coming:
        for _ in range(min(len(coming), pick.randrange(4))):
            watched.add(*coming.pop(0))
        watched.step()
    return watched.run()
