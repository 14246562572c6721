"""Lines for a batch: good ones of both forms, with requests known without the client, and bad ones of each kind."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from minilab_gen.request import GREEDY, MAX_SEED, GenerationRequest, SamplingSettings
from minilab_gen.text.tokenizer import Tokenizer

_PROMPTS: Final = (
    *("Phileas Fogg", "Le capitaine", "Passepartout regarda", "La mer était", "Au matin,", "On entendit alors"),
    *("Mon oncle", "Le Nautilus", "— Monsieur,", "Il fallait", "Depuis trois jours", "À cette heure"),
)
_SHORTEST_ANSWER: Final = 8
_LONGEST_ANSWER: Final = 60

_WITHOUT_SEED: Final = 20
"""One good line in so many is sampled and names no seed: the client gives it one, and the reference takes that."""


@dataclass(frozen=True, slots=True)
class GoodLine:
    """A line, and what it asks for."""

    custom_id: str
    content: bytes
    request: GenerationRequest
    names_seed: bool


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that must be refused."""

    custom_id: str | None
    """As far as it can be read."""
    content: bytes


def good_lines(count: int, distinct: int, stop_ids: tuple[int, ...], tokenizer: Tokenizer) -> list[GoodLine]:
    """Lines that share so many requests, which the reference has to answer once each, and some without a seed."""
    dice = random.Random(5)
    drawn = [_draw(dice, tokenizer) for _ in range(distinct)]
    lines = []
    for number in range(count):
        text, settings, answer = drawn[number % distinct]
        names_seed = settings.is_greedy or number % _WITHOUT_SEED != 0
        write = _openai if number % 3 == 0 else _own
        fields = write(text, settings, answer, names_seed)
        content = json.dumps({"custom_id": f"line-{number}", **fields}, ensure_ascii=number % 2 == 0).encode()
        request = GenerationRequest(tuple(tokenizer.encode(text)), answer, settings, stop_ids)
        lines.append(GoodLine(f"line-{number}", content, request, names_seed))
    return lines


def bad_lines(taken: str) -> list[BadLine]:
    """One line of each kind that must be refused; ``taken`` is the custom_id of a good one."""
    unread: list[bytes] = [
        b'{"custom_id": "torn", "prompt": "Phil',
        b"\0\0\0\0",
        b'{"custom_id": "bytes", "prompt": "\xff\xfe"}',
        b"[1, 2, 3]",
        b"[" * 50_000,
        b'{"custom_id": "long", "prompt": "' + b"a" * 16_000_000 + b'"}',
        b'{"custom_id": "twice", "seed": 1, "seed": 2, "prompt": "a"}',
        b'{"prompt": "a"}',
        b'{"custom_id": 7, "prompt": "a"}',
    ]
    read: list[dict[str, Any]] = [
        {"custom_id": "nan", "prompt": "a", "temperature": float("nan")},
        {"custom_id": "infinite", "prompt": "a", "top_p": float("inf")},
        {"custom_id": "half", "prompt": "\ud83d"},
        {"custom_id": "neither"},
        {"custom_id": "both", "prompt": "a", "ids": [5]},
        {"custom_id": "typo", "prompt": "a", "temprature": 1},
        {"custom_id": "range", "prompt": "a", "top_p": 1.5},
        {"custom_id": "zero", "prompt": "a", "max_new_tokens": 0},
        {"custom_id": "seed", "prompt": "a", "seed": MAX_SEED + 1},
        {"custom_id": "type", "prompt": "a", "top_k": "5"},
        {"custom_id": "empty", "prompt": ""},
        {"custom_id": "full", "prompt": "ou " * 500},
        {"custom_id": "foreign", "ids": [5, 10**9]},
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}},
        {"custom_id": "other", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "model": "other"}},
        {"custom_id": taken, "prompt": "a"},
    ]
    named = [BadLine(fields["custom_id"], json.dumps(fields).encode()) for fields in read]
    return [*(BadLine(None, content) for content in unread), *named]


def _draw(dice: random.Random, tokenizer: Tokenizer) -> tuple[str, SamplingSettings, int]:
    """A prompt, settings, and how many tokens may follow."""
    tail = tokenizer.decode(dice.randrange(300, 600) for _ in range(dice.randint(0, 10)))
    settings = SamplingSettings(
        dice.choice((0.5, 0.8, 1.0, 1.5)),
        dice.choice((None, 5, 40)),
        dice.choice((None, 0.9, 1.0)),
        dice.randint(0, MAX_SEED),
    )
    text = dice.choice(_PROMPTS) + tail.replace("\N{REPLACEMENT CHARACTER}", "")
    return text, dice.choice((GREEDY, settings, settings, settings)), dice.randint(_SHORTEST_ANSWER, _LONGEST_ANSWER)


def _own(text: str, settings: SamplingSettings, answer: int, names_seed: bool) -> dict[str, Any]:
    fields = {"prompt": text, "max_new_tokens": answer, "temperature": settings.temperature}
    fields |= {"top_k": settings.top_k, "top_p": settings.top_p}
    return fields | ({"seed": settings.seed} if names_seed else {})


def _openai(text: str, settings: SamplingSettings, answer: int, names_seed: bool) -> dict[str, Any]:
    body = {"model": "base", "prompt": text, "max_tokens": answer, "temperature": settings.temperature}
    body |= {"top_k": settings.top_k, "top_p": settings.top_p}
    body |= {"seed": settings.seed} if names_seed else {}
    return {"method": "POST", "url": "/v1/completions", "body": body}
