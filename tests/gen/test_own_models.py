"""Models of one's own on one Redis: each answers its own jobs, they can chat, and no two share a name unnoticed."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from minilab_worker.model_names import check_announced_model
from minilab_worker.serving import ServedModel, load_served_model
from minilab_worker.worker import Worker, WorkerSettings
from support.batch_files import ids_of, openai, records, write_lines
from support.client_program import announce_worker, client
from support.small_models import random_model
from support.tokenizer_kinds import llama_2
from support.waiting import wait_until
from support.worker_process import start_of_worker

import minilab_gen
from minilab_gen.errors import CheckpointError, RequestError, UnknownModelError
from minilab_gen.generate import generate
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.torch_checkpoint import write_checkpoint
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import publish_card, read_card
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "Où est Phileas Fogg ?"}]

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role + ': ' + message.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def chat_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights, the tokenizer of a Llama 2 and a chat template."""
    folder = tmp_path_factory.mktemp("own") / "My-Chat.Model"
    tokenizer = Tokenizer(llama_2())
    shape = ModelConfig(tokenizer.vocab_size, 96, n_layer=2, n_head=6, n_kv_head=2, d_model=48, d_hidden=64)
    write_checkpoint(folder, random_model(replace(shape, tied_embeddings=False), seed=3), tokenizer)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 3]}))
    described = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="session")
def chatting(chat_checkpoint: Path) -> ServedModel:
    return load_served_model(chat_checkpoint, "chat-3.2", max_batch=2, threads=1)


@pytest.fixture
def two_models(server: redis.Redis, served: ServedModel, chatting: ServedModel) -> Iterator[None]:
    """A worker of each on the real server."""
    with ExitStack() as stack:
        for model in (served, chatting):
            worker = Worker(WorkerSettings(tuple(keys.queue_names(model.card.name)), max_batch=2), model)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
        for model in (served, chatting):
            wait_until(lambda card=model.card: server.exists(keys.model_card(card.name)))  # type: ignore[misc]
        yield


def answer(job_id: str) -> tuple[list[int], str]:
    """The tokens and the text of a job, once it has ended."""
    list(minilab_gen.tail(job_id))
    found = minilab_gen.result(job_id)
    assert found is not None
    return list(found.ids), found.text


def expected(model: ServedModel, prompt: list[int], stop_ids: tuple[int, ...]) -> tuple[list[int], str]:
    """What the reference answers, and its text as the library gives it after the prompt's."""
    tokens = [step.token_id for step in generate(model.model, prompt, 12, stop_id=stop_ids)]
    spoken = tokens[:-1] if tokens[-1] in stop_ids else tokens
    whole = model.tokenizer.decode([*prompt, *spoken])
    return tokens, whole.removeprefix(model.tokenizer.decode(prompt))


# Several at once


@pytest.mark.usefixtures("two_models")
def test_each_model_answers_its_own_jobs(served: ServedModel, chatting: ServedModel) -> None:
    jobs = {
        model.card.name: minilab_gen.submit("Phileas Fogg", model=model.card.name, max_new_tokens=12)
        for model in (served, chatting)
    }

    for model in (served, chatting):
        prompt = model.tokenizer.encode("Phileas Fogg")
        assert answer(jobs[model.card.name]) == expected(model, prompt, model.card.stop_ids)


@pytest.mark.usefixtures("two_models")
def test_a_model_that_is_not_there_is_refused_with_the_list() -> None:
    with pytest.raises(UnknownModelError, match=r"the model nope; announced are base, chat-3\.2"):
        minilab_gen.submit("Phileas Fogg", model="nope")


@pytest.mark.usefixtures("two_models")
def test_models_tells_which_can_chat() -> None:
    (cards,) = json.loads(f"[{client('models', '--json').stdout}]")

    assert {card["name"]: card["chat"] is not None for card in cards} == {"base": False, "chat-3.2": True}
    table = client("models").stdout.splitlines()
    assert [line.split()[3] for line in table] == ["CHAT", "no", "yes"]


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize("name", ["chat-3.2", "some-org/chat-3.2"])
def test_a_model_is_asked_by_its_name_on_the_hub_with_its_owner_or_without(
    tmp_path: Path, chatting: ServedModel, name: str
) -> None:
    prompt = chatting.tokenizer.encode("Phileas Fogg")
    request = expected(chatting, prompt, chatting.card.stop_ids)
    lines = write_lines(
        tmp_path / "in.jsonl",
        openai("a", "Phileas Fogg", model=name, max_tokens=12, temperature=0),
        openai("b", model="x"),
    )

    submitted = client("submit", "Phileas Fogg", "--model", name, "--max-new-tokens", "12").stdout.strip()
    ended = client("batch", str(lines), "--output", str(tmp_path / "out.jsonl"), "--model", name)

    assert answer(submitted) == request
    assert answer(minilab_gen.submit("Phileas Fogg", model=name, max_new_tokens=12)) == request
    assert [ids_of(record) for record in records(tmp_path / "out.jsonl")] == [[request[0]]]
    assert ended.exit_code == 1, "the line that asks another model has no answer"
    (refused,) = records(tmp_path / "out.errors.jsonl")
    assert refused["error"]["message"] == "model must be chat-3.2, which --model names, got 'x'"


# Chat


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize("chat", [MESSAGES, MESSAGES[0]["content"]], ids=["messages", "text"])
def test_a_conversation_is_answered_through_the_models_template(
    server: redis.Redis, chatting: ServedModel, chat: str | list[dict[str, str]]
) -> None:
    job_id = minilab_gen.submit(chat=chat, model="chat-3.2", max_new_tokens=12)

    request = request_of(fetch(server, job_id))
    text = "<s>user: Où est Phileas Fogg ?</s>assistant:"
    assert list(request.prompt) == chatting.tokenizer.encode(text, bare=True)
    assert request.stop_ids == (0, 3, 2)  # the model's own, then what ends an answer in the template
    assert answer(job_id) == expected(chatting, list(request.prompt), request.stop_ids)


@pytest.mark.usefixtures("two_models")
def test_the_token_that_ends_an_answer_adds_no_text(server: redis.Redis, chatting: ServedModel) -> None:
    prompt = chatting.tokenizer.encode("Phileas Fogg")
    steps = [step.token_id for step in generate(chatting.model, prompt, 12)]
    loud = next(token for token in steps[1:] if chatting.tokenizer.decode([token]).strip())

    job_id = minilab_gen.submit("Phileas Fogg", model="chat-3.2", max_new_tokens=12, stop_ids=[loud])

    assert answer(job_id) == expected(chatting, prompt, (loud,))
    assert answer(job_id)[0][-1] == loud


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize("said", [MESSAGES[0]["content"], json.dumps(MESSAGES), "-"])
def test_the_command_line_chats(server: redis.Redis, chatting: ServedModel, said: str) -> None:
    stdin = MESSAGES[0]["content"] + "\n" if said == "-" else None

    result = client("submit", "--chat", said, "--model", "chat-3.2", "--max-new-tokens", "12", "--follow", stdin=stdin)

    prompt = chatting.card.chat.prompt(Conversation.of(MESSAGES), chatting.tokenizer) if chatting.card.chat else []
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip("\n") == expected(chatting, prompt, (0, 3, 2))[1].rstrip("\n")


@pytest.mark.usefixtures("two_models")
def test_a_system_message_stands_before_what_the_user_says(server: redis.Redis, chatting: ServedModel) -> None:
    client("submit", "--chat", "Hello", "--system", "Be brief.", "--model", "chat-3.2", "--job-id", "told")

    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert chatting.card.chat is not None
    expected_prompt = chatting.card.chat.prompt(Conversation.of(said), chatting.tokenizer)
    assert list(request_of(fetch(server, "told")).prompt) == expected_prompt


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ('[{"role": "system", "content": "x"}]', "--system", "y", "--model", "chat-3.2"),
            "a conversation must have one system message, got another one beside it",
        ),
        (("Hello", "--model", "base"), "error: the model base has no chat template; give it a plain text"),
        (('[{"role": "user"}]', "--model", "chat-3.2"), "message 0 must have role and content, and may have name"),
        (('[{"role": "user", ]', "--model", "chat-3.2"), "messages must be JSON"),
        (("--ids", "5", "--model", "chat-3.2"), "give either --chat or --ids, not both"),
        (("--model", "chat-3.2"), "give TEXT, or - to read it from standard input"),
    ],
)
def test_a_chat_that_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = client("submit", "--chat", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.usefixtures("two_models")
def test_an_answer_in_a_chat_may_be_longer_than_another_unless_a_number_is_given(server: redis.Redis) -> None:
    def longest(*arguments: str) -> int:
        job_id = client("submit", *arguments, "--model", "chat-3.2").stdout.strip()
        return request_of(fetch(server, job_id)).max_new_tokens

    assert (longest("Hello"), longest("--chat", "Hello"), longest("--chat", "Hello", "--max-new-tokens", "7")) == (
        64,
        1024,
        7,
    )
    job_id = minilab_gen.submit(chat="Hello", model="chat-3.2")
    assert request_of(fetch(server, job_id)).max_new_tokens == 1024


def test_a_job_has_either_a_prompt_or_a_chat(server: redis.Redis) -> None:
    with pytest.raises(RequestError, match="got both"):
        minilab_gen.submit("Phileas Fogg", chat="Hello")
    with pytest.raises(RequestError, match="got neither"):
        minilab_gen.submit()


# One name for two models


def test_weights_of_another_kind_under_one_name_are_warned_of(
    server: redis.Redis, chatting: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    other = replace(chatting.card, name="base", fingerprint="other")
    publish_card(server, other, chatting.tokenizer.to_json())
    card = replace(chatting.card, name="base")

    with caplog.at_level(logging.WARNING):
        check_announced_model(server, card)
        assert caplog.messages == []  # no worker of that one is alive
        announce_worker(server)
        check_announced_model(server, other)
        assert caplog.messages == []
        check_announced_model(server, card)

    assert "a live worker serves base with other weights, data type or numerics" in caplog.text


def test_a_card_of_another_version_does_not_keep_a_worker_from_starting(
    server: redis.Redis, chatting: ServedModel
) -> None:
    server.set(keys.model_card("chat-3.2"), "{}")

    check_announced_model(server, chatting.card)


def test_a_worker_with_another_tokenizer_does_not_start_under_the_name_of_a_live_one(
    server: redis.Redis, server_url: str, start_worker: Callable[[], Worker], chat_checkpoint: Path
) -> None:
    start_worker()
    wait_until(lambda: server.exists(keys.model_card("base")))
    card = read_card(server, "base")

    code, said = start_of_worker("--model", str(chat_checkpoint), "--name", "base", url=server_url)

    assert code == 2, said
    assert "error: a live worker serves another model as base, with another tokenizer; give this one a" in said
    assert read_card(server, "base") == card


def test_a_stop_id_that_can_never_be_chosen_is_refused(chat_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in chat_checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 99_999]}))

    with pytest.raises(CheckpointError, match=r"eos_token_id must be below \d+, got 99999"):
        load_served_model(folder, "x", max_batch=1, threads=1)
