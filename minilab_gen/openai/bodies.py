"""What the body of a request for a completion asks for, plain or in a chat.

Where OpenAI has a default of its own, that one applies. What the service does not have is accepted where it says "off"
and refused by name where it would change the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minilab_gen.api import ended_by_name
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.model_settings import own_ends
from minilab_gen.openai.tool_choice import TOOL_FIELDS, plan_of
from minilab_gen.openai.vllm_names import VLLM_FORMS, with_form
from minilab_gen.request import DEFAULT_CHAT_TOKENS, GIVEN_FIELDS, GenerationRequest, check_n, shown
from minilab_gen.text import openai_logprobs
from minilab_gen.text.call_reader import CallReading
from minilab_gen.text.chat import EXTRAS, Conversation

DEFAULT_MAX_TOKENS: Final = 16
"""New tokens of a completion; an answer in a chat has our own default, where OpenAI sets no bound."""
DEFAULT_TEMPERATURE: Final = 1.0

_OUR_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "stop_ids": "stop_token_ids",
    "include_stop": "include_stop_str_in_output",
}
"""What has another name here, or in vLLM, which has added a few."""

_SETTINGS: Final = {_OUR_NAMES.get(name, name): name for name in GIVEN_FIELDS}
"""Names here: ours."""

_ALL_TOKENS: Final = (0, -1)
"""Values of ``top_k`` that keep all tokens in vLLM, whose default they are or were."""

_OFF: Final[dict[str, tuple[object, ...]]] = {
    "stream": (False,),
}


@dataclass(frozen=True, slots=True)
class Route:
    """What may stand in a body for one URL."""

    url: str
    settings: Mapping[str, str]
    """Names here: ours."""
    others: tuple[str, ...]
    """Fields besides."""
    off: Mapping[str, tuple[object, ...]]
    """Fields that may only say that nothing is wanted: with one of these values, or null."""
    ignored: tuple[str, ...]
    """Fields that change no answer there, either."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.others, *self.settings, "model")


COMPLETIONS: Final = Route(
    "/v1/completions",
    _SETTINGS,
    ("prompt", "n", "echo", *VLLM_FORMS),
    {**_OFF, "best_of": (1,), "suffix": ()},
    ("user",),
)
CHAT_COMPLETIONS: Final = Route(
    "/v1/chat/completions",
    {**_SETTINGS, "max_completion_tokens": "max_new_tokens"},
    ("messages", *EXTRAS, *TOOL_FIELDS, "n", "top_logprobs", *VLLM_FORMS),
    {
        **_OFF,
        "audio": (),
        "function_call": ("auto", "none"),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "service_tier": ("auto", "default"),
        "verbosity": (),
        "web_search_options": (),
    },
    (
        "user",
        "metadata",
        "store",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
    ),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for."""

    payload: Mapping[str, object]
    """Values as they came, for :meth:`GenerationRequest.from_payload` to check; without a seed where there is none."""
    written: Mapping[str, object] | None
    """What makes a chat the same, in place of the fields of the request that its template makes; else None."""
    n: int
    """Answers."""
    echo: bool = False
    """Whether the text of an answer begins with the prompt."""
    calls: CallReading | None = None
    """How calls of tools in the answers are read; None where they stay text."""


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """The same, checked."""

    request: GenerationRequest
    n: int
    has_seed: bool
    """Whether the body names one; else whoever submits draws one."""
    echo: bool
    calls: CallReading | None = None


def read_body(route: Route, body: Mapping[str, Any], model: AskedModel) -> Asked:
    """What a body asks for. Raises RequestError for what would not be done."""
    refuse_what_we_lack(route, body)
    given = with_form(body)
    if any(_is_same(given.get("top_k"), all_tokens) for all_tokens in _ALL_TOKENS):
        del given["top_k"]
    settings = {ours: given[name] for name, ours in route.settings.items() if name in given}
    settings = {"temperature": DEFAULT_TEMPERATURE, **model.request_fields(settings)}
    n = check_n(given.get("n", 1))
    if route is COMPLETIONS:
        ends = _stop_ids(own_ends(given, model.card.stop_ids), given)
        prompt = _prompt(given, model)
        payload = {"max_new_tokens": DEFAULT_MAX_TOKENS, **settings, "prompt": prompt, "stop_ids": ends}
        echo = _echo(given)
        if echo:  # the prompt is scored like the answer, and may be all that is asked
            payload.setdefault("prompt_logprobs", settings.get("logprobs", 0))
        return Asked(payload, None, n, echo=echo)
    settings = openai_logprobs.settings_of_chat(settings, given)
    said = conversation_of(given)
    plan = plan_of(given, said, model.card.chat)
    prompt, chat_ends = model.chat(plan.conversation)
    ends = _stop_ids(own_ends(given, chat_ends), given)
    payload = {"max_new_tokens": DEFAULT_CHAT_TOKENS, **settings, **plan.form, "prompt": prompt, "stop_ids": ends}
    written = model.chat_as_written(said, given.get("stop_token_ids"), given.get("ignore_eos"))
    written |= {name: given[name] for name in TOOL_FIELDS if given.get(name) not in (None, "auto", True)}
    return Asked(payload, written, n, calls=plan.reading)


def read_request(route: Route, body: Mapping[str, Any], model: AskedModel) -> AskedRequest:
    """The request that a body makes. Raises RequestError, with the names that fields have in bodies."""
    asked = read_body(route, body, model)
    try:
        request = ended_by_name(GenerationRequest.from_payload(asked.payload), model.card, model.tokenizer)
        request.check_fits(model.card.limits)
    except RequestError as error:
        raise in_their_words(error) from error
    return AskedRequest(request, asked.n, "seed" in asked.payload, asked.echo, asked.calls)


def conversation_of(body: Mapping[str, Any]) -> Conversation:
    """The conversation in a body. Raises RequestError."""
    return Conversation.of(_messages(body)).with_extras(*(body.get(name) for name in EXTRAS))


def in_their_words(refusal: RequestError) -> RequestError:
    """A refusal of the service with the names that fields have here."""
    text = str(refusal)
    for ours, theirs in _OUR_NAMES.items():
        text = text.replace(ours, theirs)
    return RequestError(text)


def refuse_what_we_lack(route: Route, body: Mapping[str, Any]) -> None:
    """Raise RequestError for a field that would change the answer and is not offered."""
    for name, value in body.items():
        if value is None or name in route.fields or name in route.ignored:
            continue  # null asks for nothing, whatever the name: some clients send all that they know
        if name not in route.off:
            raise RequestError(f"body may have the fields {', '.join(route.fields)}, got {shown(name)}")
        if not any(_is_same(value, off) for off in route.off[name]):
            off = " or ".join(map(json.dumps, (*route.off[name], None)))
            raise RequestError(f"{name} is not offered here and must be {off}, got {shown(value)}")
    older, newer = body.get("max_tokens"), body.get("max_completion_tokens")
    if route is CHAT_COMPLETIONS and older is not None and newer is not None and not _is_same(older, newer):
        raise RequestError(f"max_tokens must be what max_completion_tokens is, got {shown(older)} and {shown(newer)}")


def prompts_of(body: Mapping[str, Any]) -> list[object]:
    """The prompts in the body of a completion, unchecked: a text or a list of ids is one, a list of them is several."""
    prompt = body.get("prompt")
    is_list_of_prompts = isinstance(prompt, list) and any(isinstance(part, str | list) for part in prompt)
    return list(prompt) if is_list_of_prompts and isinstance(prompt, list) else [prompt]


def _prompt(body: Mapping[str, Any], model: AskedModel) -> tuple[int, ...]:
    found = prompts_of(body)
    prompt = found[0] if len(found) == 1 else body.get("prompt")
    if isinstance(prompt, list) and not any(isinstance(part, str | list) for part in prompt):
        return tuple(prompt)
    if not isinstance(prompt, str):
        raise RequestError(f"prompt must be one text or one list of token ids, got {shown(prompt)}")
    return model.ids_of("prompt", prompt)


def _messages(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise RequestError(f"messages must be a list of messages, got {shown(messages)}")
    return messages


def _stop_ids(own: Sequence[int], body: Mapping[str, Any]) -> tuple[int, ...]:
    """The model's own, and those asked for."""
    given = body.get("stop_token_ids", [])
    if not isinstance(given, list):
        raise RequestError(f"stop_token_ids must be a list of token ids, got {shown(given)}")
    return (*own, *given)


def _is_same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)  # to Python, true is 1


def _echo(body: Mapping[str, Any]) -> bool:
    echo = body.get("echo", False)
    if not isinstance(echo, bool):
        raise RequestError(f"echo must be true or false, got {shown(echo)}")
    return echo
