"""Messages of tools as templates of the families see them, held to transformers' apply_chat_template."""

from __future__ import annotations

from typing import Any

import pytest
from support.call_templates import LLAMA, MISTRAL, QWEN
from support.tokenizer_kinds import qwen

from minilab_gen.errors import RequestError
from minilab_gen.text.chat import ChatFormat, Conversation

SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
QUESTION: dict[str, Any] = {"role": "user", "content": "Weather?"}
RESULT: dict[str, Any] = {"role": "tool", "content": '{"degrees": 31}', "tool_call_id": "a1b2c3d4e"}


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "a1b2c3d4e", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def said(arguments: Any, content: str | None = "", **more: Any) -> list[dict[str, Any]]:
    calling = {"role": "assistant", "content": content, "tool_calls": [call(arguments)], **more}
    return [QUESTION, calling, RESULT, {"role": "assistant", "content": "Hot."}, QUESTION]


def ours(template: str, messages: list[dict[str, Any]]) -> str:
    conversation = Conversation.of(messages).with_extras(TOOLS)
    return ChatFormat(template, SPECIAL).render(conversation, add_generation_prompt=True)


@pytest.mark.filterwarnings("ignore")  # of transformers, about Python
@pytest.mark.parametrize("template", [QWEN, LLAMA, MISTRAL], ids=["qwen", "llama", "mistral"])
@pytest.mark.parametrize("content", ["", "I look."])
def test_calls_and_results_reach_a_template_as_from_transformers(template: str, content: str) -> None:
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=qwen(), chat_template=template, **SPECIAL)
    arguments = {"city": "Suez 🧭", "days": [1, 2]}
    text = theirs.apply_chat_template(said(arguments, content), tools=TOOLS, tokenize=False, add_generation_prompt=True)

    assert ours(template, said(arguments, content)) == text
    assert ours(template, said('{"city": "Suez 🧭",\n"days": [1, 2]}', content)) == text
    assert "Suez 🧭" in text


@pytest.mark.parametrize("template", [QWEN, LLAMA, MISTRAL], ids=["qwen", "llama", "mistral"])
def test_a_call_without_content_is_one_with_none(template: str) -> None:
    bare = [{name: value for name, value in each.items() if value is not None} for each in said("{}", None)]

    assert "content" not in bare[1]
    assert ours(template, bare) == ours(template, said("{}", None)) == ours(template, said({}, ""))


def test_a_message_without_calls_needs_a_content() -> None:
    with pytest.raises(RequestError, match="message 0 must have role and content"):
        Conversation.of([{"role": "assistant", "tool_calls": None}])
