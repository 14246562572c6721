"""Conversations: what may be said, and that a template makes of it what transformers makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_kinds import llama_2, llama_3, qwen

from minilab_gen.errors import CheckpointError, RequestError
from minilab_gen.request import MAX_PROMPT_CHARACTERS
from minilab_gen.text.chat import (
    MAX_MESSAGES,
    MAX_TEMPLATE_CHARACTERS,
    ChatFormat,
    Conversation,
    Message,
    read_chat_format,
)
from minilab_gen.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
THINKING = """{%- if tools %}
    {{- 'TOOLS ' + tools | tojson }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if loop.index0 > ns.last and not message.content %}{% continue %}{% endif %}
    <|im_start|>{{ message.role }} {{ message | tojson }}
    {% generation %}{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% endgeneration %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATES = {
    "chatml": (CHATML, qwen, {"eos_token": "<|im_end|>"}),
    "inst": (INST, llama_2, {"bos_token": "<s>", "eos_token": "</s>"}),
    "headers": (HEADERS, llama_3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "thinking": (THINKING, qwen, {"eos_token": "<|im_end|>"}),
}
CONVERSATIONS = [
    [{"role": "user", "content": "What is a KV cache?"}],
    [{"role": "user", "content": ' <b>é</b> "q" 😀\n'}, {"role": "assistant", "content": "<think>x</think>\n\nYes"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "<|im_end|></s> three"},
    ],
]


def chat_of(name: str) -> tuple[ChatFormat, Tokenizer]:
    template, kind, tokens = TEMPLATES[name]
    return ChatFormat(template, tokens), Tokenizer(kind())


def rendered(template: str, text: str = "Hello") -> str:
    return ChatFormat(template).render(Conversation.of(text), add_generation_prompt=True)


# What a template makes


@pytest.mark.filterwarnings("ignore")  # of transformers, about Python
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one", "two", "three"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_what_transformers_makes_of_it(name: str, messages: list[dict[str, str]]) -> None:
    import transformers

    template, kind, tokens = TEMPLATES[name]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=kind(), chat_template=template, **tokens)
    chat, tokenizer = chat_of(name)
    conversation = Conversation.of(messages)

    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]

    assert chat.render(conversation, add_generation_prompt=True) == text
    assert chat.prompt(conversation, tokenizer) == ids


@pytest.mark.parametrize(
    ("name", "token"),
    [("chatml", "<|im_end|>"), ("inst", "</s>"), ("headers", "<|eot_id|>"), ("thinking", "<|im_end|>")],
)
def test_an_answer_ends_with_what_the_template_puts_after_one(name: str, token: str) -> None:
    chat, tokenizer = chat_of(name)
    nameless = ChatFormat(chat.template, {"bos_token": "", "eos_token": token if name == "inst" else ""})

    assert set(nameless.stop_ids(tokenizer)) == {tokenizer.token_id(token)}


def test_an_answer_also_ends_with_the_end_token_of_the_tokenizer() -> None:
    tokenizer = Tokenizer(qwen())
    chat = ChatFormat("{{ messages[0].content }}", {"eos_token": "<|endoftext|>"})

    assert chat.stop_ids(tokenizer) == [tokenizer.token_id("<|endoftext|>")]


def test_a_template_that_refuses_to_look_back_still_has_an_end() -> None:
    tokenizer = Tokenizer(qwen())
    chat = ChatFormat("{{ raise_exception('no') }}", {"eos_token": "<|im_end|>"})

    assert chat.stop_ids(tokenizer) == [tokenizer.token_id("<|im_end|>")]


# What a template may not do


def test_what_a_template_objects_to_is_told() -> None:
    chat, tokenizer = chat_of("inst")
    conversation = Conversation.of([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])

    with pytest.raises(RequestError, match="the model's chat template refuses: roles must alternate"):
        chat.prompt(conversation, tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{% for %}",
        "{{ undefined_function() }}",
        "{% set ns = namespace() %}{{ ns.x.y }}",
    ],
)
def test_a_template_that_reaches_out_or_fails_is_refused(template: str) -> None:
    with pytest.raises(RequestError, match=r"the model's chat template (refuses|fails): "):
        rendered(template)


def test_a_template_may_not_write_for_ever() -> None:
    with pytest.raises(RequestError, match=f"must make at most {MAX_PROMPT_CHARACTERS} characters"):
        rendered(
            "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content }}{% endfor %}{% endfor %}"
        )


# What may be said


def test_a_text_is_what_the_user_says() -> None:
    assert Conversation.of("Hello").messages == (Message("user", "Hello"),)
    assert Conversation.from_text("Hello").messages == (Message("user", "Hello"),)


@pytest.mark.parametrize("text", ["[1, 2] is a list", "[]", "{}", '{"role": "user"}', "[INST] Hello", " [ "])
def test_a_text_that_begins_with_no_message_is_what_the_user_says(text: str) -> None:
    assert Conversation.from_text(text).messages == (Message("user", text),)


@pytest.mark.parametrize("start", ["", " \n"])
def test_messages_in_json_are_a_conversation(start: str) -> None:
    assert Conversation.from_text(start + json.dumps(CONVERSATIONS[2])) == Conversation.of(CONVERSATIONS[2])
    assert [message.role for message in Conversation.of(CONVERSATIONS[2]).messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"role": "user", "content": "x"}', "messages must be JSON: Expecting ',' delimiter"),
        ("[{" + "[" * 100_000, "messages must be JSON"),
        ('[{"role": "user"}]', "message 0 must have role and content, and may have .*, got .'role'."),
        ('[{"role": "user", "content": "x", "image": "y"}]', "message 0 must have role and content, and may have name"),
        ('[{"role": "user", "content": "x"}, 5]', "message 1 must be an object with role and content, got int"),
        ('[{"role": "bot", "content": "x"}]', "must be one of system, developer, user, assistant, tool, got 'bot'"),
        ('[{"role": 5, "content": "x"}]', "must be one of system, .*, got 5"),
        ('[{"role": ["user"], "content": "x"}]', "must be one of system, .*, got .'user'."),
        ('[{"role": "user", "content": null}]', "the content of a message must be text, got NoneType"),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "content parts must be .* got ..type.: .text.."),
        ('[{"role": "user", "content": "\\ud800"}]', "prompt must be text of whole characters"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_rule(content: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Conversation.from_text(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], f"must hold 1 to {MAX_MESSAGES} messages, got 0"),
        ([CONVERSATIONS[0][0]] * (MAX_MESSAGES + 5), f"must hold 1 to {MAX_MESSAGES} messages, got {MAX_MESSAGES + 1}"),
        (5, "must be a text or a list of messages, got int"),
        (b"Hello", "must be a text or a list of messages, got bytes"),
        (CONVERSATIONS[0][0], "must be a text or a list of messages, got dict"),
        ("x" * (MAX_PROMPT_CHARACTERS + 1), "must be at most"),
    ],
)
def test_a_program_is_told_what_a_conversation_must_be(content: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Conversation.of(content)


# Where a template comes from


def write_tokenizer_config(folder: Path, **content: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(content))


def test_a_folder_without_a_template_has_no_format(tmp_path: Path) -> None:
    assert read_chat_format(tmp_path) is None
    write_tokenizer_config(tmp_path, eos_token="</s>")
    assert read_chat_format(tmp_path) is None


def test_a_template_and_its_tokens_come_from_the_tokenizers_config(tmp_path: Path) -> None:
    old_token = {"content": "<s>", "lstrip": False, "special": True}
    write_tokenizer_config(tmp_path, chat_template="T", bos_token=old_token, eos_token="</s>", pad_token=None)

    assert read_chat_format(tmp_path) == ChatFormat("T", {"bos_token": "<s>", "eos_token": "</s>"})


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]
    write_tokenizer_config(tmp_path, chat_template=named)

    assert read_chat_format(tmp_path) == ChatFormat("B")


def test_a_template_in_a_file_of_its_own_goes_first(tmp_path: Path) -> None:
    write_tokenizer_config(tmp_path, chat_template="T", eos_token="</s>")
    (tmp_path / "chat_template.jinja").write_text("F")

    assert read_chat_format(tmp_path) == ChatFormat("F", {"eos_token": "</s>"})


@pytest.mark.parametrize("template", [5, {"default": "T"}, "x" * (MAX_TEMPLATE_CHARACTERS + 1)])
def test_a_template_that_is_no_text_is_a_checkpoint_error(tmp_path: Path, template: Any) -> None:
    write_tokenizer_config(tmp_path, chat_template=template)

    with pytest.raises(CheckpointError, match="a chat template must be text of at most"):
        read_chat_format(tmp_path)


def test_a_template_file_that_is_no_text_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x80")

    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
        read_chat_format(tmp_path)
