"""What is asked over HTTP in a chaos run: chats and completions, plain and streamed, with one answer or several."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from minilab_gateway.notes import RouteName
from minilab_gateway.service import digest_of

from chaos.load import request_pool
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS
from minilab_gen.protocol import keys
from minilab_gen.protocol.groups import requests_of
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

URLS: Final[dict[RouteName, str]] = {"text": COMPLETIONS.url, "chat": CHAT_COMPLETIONS.url}

_POOL: Final = 60
"""Different bodies of a run of many seeds."""

_QUIET: Final = 4
"""Clients that come and go away when nothing breaks any more."""

_WORDS: Final = ("Phileas Fogg", " était", " à", " Londres", ", et", " Passepartout", "\n", " 😀", " é")

_NAMES: Final = {"max_new_tokens": "max_tokens", "stop_ids": "stop_token_ids"}
"""Ours: those in bodies."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body asks for."""

    route: RouteName
    body: Mapping[str, Any]
    request: GenerationRequest
    n: int

    @property
    def requests(self) -> list[GenerationRequest]:
        """One for each answer."""
        return requests_of(self.request, self.n)


@dataclass(frozen=True, slots=True)
class PlannedAsk:
    """One request over HTTP, and what its client does with it."""

    number: int
    ask: Ask
    at: float
    """Seconds after the beginning at which it is sent."""
    streams: bool = True
    usage: bool = False
    has_key: bool = True
    """Whether it has an Idempotency-Key: else its jobs end when its client goes away."""
    leaves_after: int | None = None
    """Events after which the client goes away: with a key it comes back."""
    cancels_after: int | None = None
    """Events after which it asks that the answer stop."""

    @property
    def body(self) -> dict[str, Any]:
        """As it is sent; no two clients send the same one."""
        body: dict[str, Any] = {**self.ask.body, "user": f"client-{self.number}"}
        if self.streams:
            body["stream"] = True
            if self.usage:
                body["stream_options"] = {"include_usage": True}
        return body

    @property
    def digest(self) -> str:
        """By which its jobs are found."""
        return digest_of(self.body)


def http_pool() -> list[Ask]:
    """The bodies that all seeds draw from."""
    dice = random.Random(5)
    pool = [request for request in request_pool() if len(request.prompt) > 1]
    return [_random_ask(dice, dice.choice(pool)) for _ in range(_POOL)]


def all_requests() -> list[GenerationRequest]:
    """All that may be asked in a run, over HTTP or not."""
    return [*request_pool(), *(request for ask in http_pool() for request in ask.requests)]


def _random_ask(dice: random.Random, request: GenerationRequest) -> Ask:
    n = dice.choice([1, 1, 1, 1, 2, 3])
    if dice.random() < 0.5:
        return Ask("text", _body_of(request, n) | {"prompt": list(request.prompt)}, request, n)
    texts = ["".join(dice.choices(_WORDS, k=dice.randint(1, 6))) for _ in range(dice.randint(1, 3))]
    request = replace(request, prompt=tuple(get_tokenizer().encode("".join(texts))))
    body = _body_of(request, n)
    body["messages"] = [{"role": "user", "content": text} for text in texts]
    if request.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    return Ask("chat", body, request, n)


def _body_of(request: GenerationRequest, n: int) -> dict[str, Any]:
    payload = {name: value for name, value in request.to_payload().items() if value is not None and name != "prompt"}
    own = {"model": keys.DEFAULT_MODEL, "n": n, "ignore_eos": True}  # what ends it is said in its stop_token_ids
    return own | {_NAMES.get(name, name): value for name, value in payload.items()}


def plan_http(dice: random.Random, pool: list[Ask], wanted: int, seconds: float) -> list[PlannedAsk]:
    """The requests of one seed: a third at once, the others as time goes by."""
    times = [dice.choice([0.0, dice.uniform(0, seconds), dice.uniform(0, seconds)]) for _ in range(wanted)]
    return [_planned(dice, number, dice.choice(pool), at) for number, at in enumerate(times)]


def plan_quiet(dice: random.Random, pool: list[Ask], first: int) -> list[PlannedAsk]:
    """Requests for the time after the faults, whose clients go away in the middle; numbered from ``first`` on."""
    lasting = [ask for ask in pool if ask.request.max_new_tokens >= 60 and ask.request.form is None]
    return [
        PlannedAsk(
            number, dice.choice(lasting), dice.uniform(0, 2), has_key=False, leaves_after=dice.choice([1, 2, 10])
        )
        for number in range(first, first + _QUIET)
    ]


def _planned(dice: random.Random, number: int, ask: Ask, at: float) -> PlannedAsk:
    has_key = dice.random() < 0.85
    leaves_after = dice.choice([None, None, dice.randint(0, 60)]) if has_key else dice.randint(0, 40)
    return PlannedAsk(
        number,
        ask,
        at,
        streams=not has_key or dice.random() < 0.75,
        usage=dice.random() < 0.5,
        has_key=has_key,
        leaves_after=leaves_after,
        cancels_after=dice.randint(0, 30) if has_key and dice.random() < 0.1 else None,
    )
