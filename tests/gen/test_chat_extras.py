"""What may stand beside the texts of a conversation: parts, names, tools and their calls, variables of the template."""

from __future__ import annotations

from typing import Any

import pytest
from support.tokenizer_kinds import qwen

from minilab_gen.errors import RequestError
from minilab_gen.text.chat import MAX_EXTRA_CHARACTERS, MAX_TOOLS, ChatFormat, Conversation, Message

TEMPLATE = """{%- if tools %}TOOLS {{ tools | tojson }}
{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + (' ' + message.name if message.name else '') + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.name }}({{ call.function.arguments | tojson }}){%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
HELLO = [{"role": "user", "content": "Hello"}]
CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?", "name": "Fogg"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Suez"}}},
        ],
    },
    {"role": "tool", "content": "hot", "tool_call_id": "1"},
]


def text_of(conversation: Conversation, template: str = TEMPLATE) -> str:
    return ChatFormat(template).render(conversation, add_generation_prompt=True)


def role_of(role: str, template: str) -> str:
    return text_of(Conversation.of([{"role": role, "content": "x"}]), template)


def calling(arguments: object) -> Conversation:
    call = {"function": {"name": "weather", "arguments": arguments}}
    return Conversation.of([*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}])


@pytest.mark.filterwarnings("ignore")  # of transformers, about Python
@pytest.mark.parametrize("messages", [HELLO, CALLED], ids=["hello", "called"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}, {"enable_thinking": True}], ids=str)
def test_tools_and_variables_reach_the_template_as_from_transformers(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, kwargs: dict[str, Any]
) -> None:
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=qwen(), chat_template=TEMPLATE)
    text = theirs.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True, **kwargs)

    assert text_of(Conversation.of(messages).with_extras(tools, kwargs)) == text


def test_text_parts_of_a_content_are_lines_of_one_text() -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "a token?"}]

    assert Conversation.of([{"role": "user", "content": parts}]).messages == (Message("user", "What is\na token?"),)


def test_a_developer_is_the_system_to_a_template_that_does_not_know_the_role() -> None:
    knows = "{% if messages[0].role == 'developer' %}a developer{% endif %}"

    assert role_of("developer", "{{ messages[0].role }}") == "system"
    assert role_of("developer", knows) == "a developer"


def test_arguments_of_a_call_may_be_json_in_a_text_as_clients_of_openai_send_them() -> None:
    assert text_of(calling('{"city": "Suez"}')) == text_of(calling({"city": "Suez"}))
    assert text_of(calling("")) == text_of(calling({}))


@pytest.mark.parametrize("number", range(3))
def test_a_system_message_is_put_before_messages_and_extras_stay(number: int) -> None:
    told = Conversation.of(HELLO * (number + 1)).with_extras(TOOLS, {"enable_thinking": False}).told("Be brief.")

    assert told.messages[0] == Message("system", "Be brief.")
    assert (told.tools, told.template_kwargs) == (tuple(TOOLS), {"enable_thinking": False})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"content": [{"type": "image_url"}]}, 'content parts must be .*"type": "text".*, got ..type.: .image_url'),
        ({"content": ["Hello"]}, "content parts must be .*, got 'Hello'"),
        ({"name": 5}, "name and tool_call_id must be texts, got 5"),
        ({"tool_call_id": "\ud800"}, "text of whole characters"),
        ({"tool_calls": {}}, "tool_calls must be a list of objects"),
        ({"tool_calls": [{"id": "1"}]}, "a tool call must have a function with a name"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "arguments of a tool call must be JSON"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "5"}}]}, "must be an object, got 5"),
        ({"tool_calls": [{"function": {"name": "f"}, "x": float("nan")}]}, "tool_calls must be JSON"),
    ],
    ids=str,
)
def test_a_message_of_another_kind_is_refused_with_the_rule(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Conversation.of([{**HELLO[0], **more}])


@pytest.mark.parametrize(
    ("tools", "kwargs", "message"),
    [
        ("weather", None, "tools must be a list of objects, got 'weather'"),
        ([5], None, f"tools must be a list of at most {MAX_TOOLS} objects"),
        (TOOLS * (MAX_TOOLS + 1), None, f"tools must be a list of at most {MAX_TOOLS} objects"),
        ([{"x": object()}], None, "tools must be JSON"),
        (None, "x", "chat_template_kwargs must be an object, got 'x'"),
        (None, {5: 1}, "chat_template_kwargs must be an object"),
        (None, {"messages": []}, "chat_template_kwargs must not set messages"),
        (None, {"add_generation_prompt": False}, "must not set add_generation_prompt"),
        (None, {"x": "y" * MAX_EXTRA_CHARACTERS}, f"at most {MAX_EXTRA_CHARACTERS} characters as JSON"),
    ],
    ids=range(9),
)
def test_extras_of_another_kind_are_refused_with_the_rule(tools: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Conversation.of("Hello").with_extras(tools, kwargs)
