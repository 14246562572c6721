"""Responses, as OpenAI's own client asks for them, from a real gateway and worker."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from minilab_worker.serving import ServedModel
from openai.types.responses import (
    Response,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic import BaseModel
from support.references import reference_ids

from gateway.conftest import TEMPLATE
from gateway.gateway_process import Gateway, extra
from minilab_gen.request import GenerationRequest

ASKED: dict[str, Any] = {
    "model": "base",
    "input": "Passepartout",
    "temperature": 0,
    "max_output_tokens": 8,
    "extra_body": {"ignore_eos": True},
}


def ask(gateway: Gateway, **asked: Any) -> Response:
    """A whole response; its extra parameters need no types here."""
    create: Any = gateway.client().responses.create
    answer = create(**{**ASKED, **asked})
    assert isinstance(answer, Response)
    return answer


def text_of(answer: Response) -> ResponseOutputText:
    """The text of a response, with what belongs to it."""
    (message,) = answer.output
    assert isinstance(message, ResponseOutputMessage)
    (part,) = message.content
    assert isinstance(part, ResponseOutputText)
    return part


def extras_in(part: object) -> set[str]:
    """Names of fields that OpenAI's types do not have, anywhere within."""
    if isinstance(part, list):
        return set().union(*map(extras_in, part))
    if not isinstance(part, BaseModel):
        return set()
    return set(part.model_extra or ()).union(*(extras_in(value) for _, value in part))


def rendered(*messages: tuple[str, str]) -> str:
    """What the template of the tests makes of a conversation."""
    assert "{{ message.role }}: {{ message.content }}" in TEMPLATE
    return "".join(f"{role}: {content}\n" for role, content in messages)


def expected_reply(served: ServedModel, *messages: tuple[str, str], tokens: int = 8) -> str:
    """The reply to a conversation, by generating alone."""
    prompt = tuple(served.tokenizer.encode(rendered(*messages), bare=True))
    ids = reference_ids(served, GenerationRequest(prompt, max_new_tokens=tokens))
    return served.tokenizer.decode(ids)


def test_a_response_has_the_tokens_that_generate_gives(chat_gateway: Gateway, chat_served: ServedModel) -> None:
    answer = ask(chat_gateway)

    assert answer.output_text == expected_reply(chat_served, ("user", "Passepartout"))
    assert answer.id.startswith("resp_")
    assert (answer.status, answer.object, answer.model) == ("incomplete", "response", "base")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.error is None
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.usage.total_tokens) == (8, answer.usage.input_tokens + 8)
    (message,) = answer.output
    assert (message.type, message.id) == ("message", answer.id.replace("resp_", "msg_"))


def test_a_response_has_every_field_of_its_type_and_two_more(chat_gateway: Gateway) -> None:
    answer = ask(chat_gateway, metadata={"a": "b"}, user="me")

    assert extras_in(answer) == {"store", "seed"}
    Response.model_validate(answer.model_dump(by_alias=True, exclude_unset=True), strict=True)
    assert (answer.metadata, answer.user, answer.tools, answer.tool_choice) == ({"a": "b"}, "me", [], "auto")
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0, 1, 8)
    assert answer.text is not None
    assert answer.text.format is not None
    assert (answer.text.format.type, answer.truncation, answer.service_tier) == ("text", "disabled", "default")


def test_a_reply_that_ends_by_itself_is_completed(chat_gateway: Gateway) -> None:
    text = ask(chat_gateway).output_text

    answer = ask(chat_gateway, extra_body={"stop": text[2:5], "ignore_eos": True})

    assert (answer.status, answer.incomplete_details) == ("completed", None)
    assert answer.output_text == text[: text.index(text[2:5])]
    assert answer.output[0].status == "completed"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given",
    [
        [{"role": "user", "content": "Passepartout"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Passepartout"}]}],
    ],
    ids=str,
)
def test_messages_of_either_shape_are_what_a_text_is(chat_gateway: Gateway, given: list[Any]) -> None:
    assert ask(chat_gateway, input=given).output_text == ask(chat_gateway).output_text


def test_instructions_are_a_system_message_in_front(chat_gateway: Gateway, chat_served: ServedModel) -> None:
    answer = ask(chat_gateway, instructions="Oui")

    assert answer.output_text == expected_reply(chat_served, ("system", "Oui"), ("user", "Passepartout"))
    assert answer.instructions == "Oui"


def test_tools_reach_the_template_and_come_back(chat_gateway: Gateway) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}

    plain, with_tool = ask(chat_gateway), ask(chat_gateway, tools=[tool], tool_choice="auto", parallel_tool_calls=True)

    assert plain.usage is not None
    assert with_tool.usage is not None
    assert with_tool.usage.input_tokens > plain.usage.input_tokens
    assert with_tool.tools[0].to_dict() == tool


def test_logprobs_are_those_of_a_chat(chat_gateway: Gateway) -> None:
    include: list[Any] = ["message.output_text.logprobs"]

    answer = ask(chat_gateway, include=include, top_logprobs=2)

    chat = chat_gateway.chat(
        model="base",
        messages=[{"role": "user", "content": "Passepartout"}],
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    assert chat.choices[0].logprobs is not None
    expected = [one.to_dict() for one in chat.choices[0].logprobs.content or []]
    part = text_of(answer)
    assert [one.to_dict() for one in part.logprobs or []] == expected
    assert len(expected) == 8
    assert extras_in(answer) == {"store", "seed"}


def test_an_answer_may_be_held_to_a_form(chat_gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}

    answer = ask(chat_gateway, text={"format": form}, max_output_tokens=20)
    free = ask(chat_gateway, text={"format": {"type": "json_object"}})
    chosen = ask(chat_gateway, extra_body={"choice": ["oui", "non"]}, text={"format": {"type": "text"}})

    assert answer.output_text.replace(" ", "").replace("\n", "").startswith('{"a":')
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.to_dict() == form
    assert free.output_text.lstrip().startswith("{")
    assert chosen.output_text in ("oui", "non")


def test_a_model_without_a_template_goes_on_with_one_text(gateway: Gateway) -> None:
    answer = ask(gateway, input="Phileas Fogg")

    plain = gateway.complete(
        model="base", prompt="Phileas Fogg", temperature=0, max_tokens=8, extra_body={"ignore_eos": True}
    )
    assert answer.output_text == plain.choices[0].text
    listed = ask(gateway, input="Phileas Fogg", include=["message.output_text.logprobs"], top_logprobs=1)
    part = text_of(listed)
    assert [len(one.top_logprobs) for one in part.logprobs or []] == [1] * 8


@pytest.mark.parametrize(
    "fields",
    [{"instructions": "x"}, {"input": [{"role": "user", "content": "x"}]}, {"previous": True}],
    ids=str,
)
def test_a_model_without_a_template_refuses_a_conversation(gateway: Gateway, fields: dict[str, Any]) -> None:
    if fields.pop("previous", False):
        fields = {"previous_response_id": ask(gateway).id}

    with pytest.raises(openai.BadRequestError, match="has no chat template: input must be one text"):
        ask(gateway, **fields)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({"max_output_tokens": 3}, 3), ({"max_output_tokens": None}, 16)],
    ids=str,
)
def test_the_limit_is_kept_and_null_is_none(gateway: Gateway, fields: dict[str, Any], tokens: int) -> None:
    answer = ask(gateway, extra_body={**fields, "ignore_eos": True})

    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.status) == (tokens, "incomplete")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1, got 0"),
        ({"max_tokens": 3}, None, "body may have the fields"),
        ({"temperature": -1}, "temperature", "temperature must be"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools must be of type function"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice must be auto or none without tools"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "reasoning is not offered here"),
        ({"conversation": "conv_1"}, "conversation", "conversation is not offered here"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "prompt is not offered here"),
        ({"truncation": "auto"}, "truncation", "truncation is not offered here"),
        ({"service_tier": "flex"}, "service_tier", "service_tier is not offered here"),
        ({"include": ["reasoning.encrypted_content"]}, "include", "include must be"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs goes with include"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs", "top_logprobs must be"),
        ({"input": []}, "input", "input must be a text or a list of 1 to"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input", "type message"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "got 'input_image'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input", "must have a role of"),
        ({"input": 400 * "abc "}, "input", "input must hold 1 to 63 ids"),
        ({"text": {"format": {"type": "xml"}}}, "text", "text.format must have a type"),
        ({"text": {"verbosity": "low"}}, "text", "text.verbosity is not offered here"),
        ({"metadata": {"a": 1}}, "metadata", "metadata must have"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16"),
        ({"background": True, "store": False}, "store", "store must be true"),
        ({"stream_options": {}}, "stream_options", "goes with stream true"),
        ({"n": 2}, None, "body may have the fields"),
        ({"model": ""}, "model", "a request must name a model"),
    ],
    ids=str,
)
def test_what_would_not_be_done_is_refused_by_name(
    chat_gateway: Gateway, fields: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(chat_gateway, extra_body=fields)

    assert message in refused.value.message
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")


def test_what_changes_nothing_and_null_are_accepted(chat_gateway: Gateway) -> None:
    nothing = dict.fromkeys(("instructions", "previous_response_id", "metadata", "include", "tools", "prompt"))
    same = {"service_tier": "default", "truncation": "disabled", "reasoning": {"effort": None}, "text": {}}
    more = {"safety_identifier": "x", "prompt_cache_key": "y", "store": True, "background": False}

    answer = ask(chat_gateway, extra_body={**nothing, **same, **more, "ignore_eos": True})

    assert answer.output_text == ask(chat_gateway).output_text
    assert (answer.safety_identifier, answer.prompt_cache_key) == ("x", "y")


def test_a_seed_is_given_back_and_gives_the_same_again(chat_gateway: Gateway) -> None:
    first = ask(chat_gateway, temperature=1, top_p=0.9)
    again = ask(chat_gateway, temperature=1, top_p=0.9, extra_body={"seed": extra(first, "seed"), "ignore_eos": True})

    assert (again.output_text, again.top_p) == (first.output_text, 0.9)
