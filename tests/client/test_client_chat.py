"""``minilab-client chat``: a conversation at a terminal, with a worker that is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import redis
from chaos.checkpoint import CONTEXT, write_slow_checkpoint
from minilab_client.dialogue import Dialogue
from support.batch_files import asked_model
from support.client_process import environment
from support.client_program import client, fake_redis
from support.own_service import LIMIT, OwnService, own_service_of
from support.terminal import CTRL_C, CTRL_D, ENTER, Terminal

from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.jobs import fetch, request_of, view
from minilab_gen.protocol.listing import Wanted, newest_jobs
from minilab_gen.protocol.results import result
from minilab_gen.text.chat import ChatFormat, Conversation
from minilab_gen.text.tokenizer import get_tokenizer

pytestmark = pytest.mark.slow

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
FORMAT = ChatFormat(TEMPLATE)
PROMPT = "\n> "


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnService]:
    """A worker process that serves a model with a chat template, under the name of the base model."""
    folder = write_slow_checkpoint(tmp_path_factory.mktemp("chat"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    with own_service_of(folder) as service:
        service.fleet.start_and_wait()
        yield service


@pytest.fixture
def url(service: OwnService) -> str:
    return service.server.url


def jobs(service: OwnService) -> list[str]:
    """The ids of all jobs, oldest first."""
    rows = newest_jobs(service.connection, Wanted(), pytest.fail)
    return [row.job_id for row in rows][::-1]


def prompt_of(service: OwnService, job_id: str) -> list[int]:
    return list(request_of(fetch(service.connection, job_id)).prompt)


def text_of(service: OwnService, job_id: str) -> str:
    found = result(service.connection, job_id)
    assert found is not None
    return found.text


def rendered(*said: str, system: str | None = None) -> list[int]:
    """The ids of a conversation in which user and model take turns."""
    first = [] if system is None else [{"role": "system", "content": system}]
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
    return FORMAT.prompt(Conversation.of([*first, *turns]), get_tokenizer())


def test_an_answer_ends_before_a_stop_text(service: OwnService, url: str) -> None:
    said = b"Bonjour\n"
    before = jobs(service)
    whole, stopped = (
        subprocess.run(
            [sys.executable, "-m", "minilab_client", "chat", "--max-new-tokens", "30", *stop],
            input=said,
            env=environment(url),
            capture_output=True,
            check=True,
            timeout=LIMIT,
        ).stdout.decode()
        for stop in ([], ["--stop", "<|im_end|>", "--stop", "e"])
    )

    assert (whole.count("e") > 0, stopped) == (True, whole[: whole.index("e")] + "\n")
    asked = request_of(fetch(service.connection, jobs(service)[len(before) + 1]))
    assert (asked.stop, asked.stop_ids[-1]) == (("<|im_end|>", "e"), 2)


def test_an_answer_may_be_asked_to_be_longer_than_the_context_leaves(service: OwnService, url: str) -> None:
    before = jobs(service)

    ended = subprocess.run(
        [sys.executable, "-m", "minilab_client", "chat", "--min-tokens", "900", "--bad-word", "Fogg", "--ignore-eos"],
        input=b"Bonjour\n",
        env=environment(url),
        capture_output=True,
        check=True,
        timeout=LIMIT,
    )

    assert b"cut where the model's context is full" in ended.stderr
    asked = request_of(fetch(service.connection, jobs(service)[len(before)]))
    room = CONTEXT - len(rendered("Bonjour"))
    assert (asked.max_new_tokens, asked.settings.min_tokens, asked.stop_ids) == (room, room, ())
    assert asked.settings.bad_words_ids == ((40, 351), (352,))


def test_each_answer_is_given_with_all_that_was_said_before(service: OwnService, url: str) -> None:
    before = jobs(service)
    with Terminal(url, "chat", "--max-new-tokens", "8", "--system", "Be brief.") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Bonjour" + ENTER)
        terminal.wait_for(PROMPT)
        terminal.type("Encore" + ENTER)
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)

        assert terminal.ended() == 0
    first, second = jobs(service)[len(before) :]
    assert prompt_of(service, first) == rendered("Bonjour", system="Be brief.")
    assert prompt_of(service, second) == rendered("Bonjour", text_of(service, first), "Encore", system="Be brief.")


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(service: OwnService, url: str) -> None:
    before = jobs(service)
    with Terminal(url, "chat", "--max-new-tokens", "100") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Bonjour" + ENTER)
        terminal.wait_for("Bonjour\r\n")
        terminal.wait_for_more()
        terminal.type(CTRL_C)
        terminal.wait_for("stopped")
        terminal.wait_for(PROMPT)
        (stopped,) = jobs(service)[len(before) :]
        service.wait_for_status(stopped, "stopped", "canceled", "failed", "finished")
        assert view(service.connection, stopped).state == "cancelled"
        terminal.type("Encore" + ENTER)
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)

        assert terminal.ended() == 0
    _, second = jobs(service)[len(before) :]
    whole = text_of(service, stopped)
    kept = [rendered("Bonjour", whole[:length], "Encore") for length in range(1, len(whole) + 1)]
    assert prompt_of(service, second) in kept, "what was shown of the stopped answer is a part of the conversation"


def drop_the_line(terminal: Terminal) -> None:
    """Press Ctrl-C, again where it came just before Python's readline began to wait, which then sees the next key."""
    for _ in range(5):
        terminal.type(CTRL_C)
        with suppress(AssertionError):
            terminal.wait_for(PROMPT, limit=3)
            return
    raise AssertionError("the prompt does not come back")


def test_ctrl_c_at_the_prompt_drops_the_line_and_not_the_program(service: OwnService, url: str) -> None:
    before = jobs(service)
    with Terminal(url, "chat", "--max-new-tokens", "8") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("half a line")
        terminal.wait_for("half a line")
        drop_the_line(terminal)
        terminal.type("Bonjour" + ENTER)
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)

        assert terminal.ended() == 0
    (only,) = jobs(service)[len(before) :]
    assert prompt_of(service, only) == rendered("Bonjour")


def test_a_conversation_that_outgrows_the_context_loses_its_oldest_turns_and_says_so(
    service: OwnService, url: str
) -> None:
    before = jobs(service)
    with Terminal(url, "chat", "--max-new-tokens", "50") as terminal:
        said = terminal.wait_for(PROMPT)
        for turn in range(3):
            terminal.type(f"Bonjour {turn}" + ENTER)
            said = terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)

        assert terminal.ended() == 0
    assert f"the conversation has outgrown the model's {CONTEXT} tokens: its oldest" in said
    *_, second, third = jobs(service)[len(before) :]
    last = prompt_of(service, third)
    assert last in (rendered("Bonjour 1", text_of(service, second), "Bonjour 2"), rendered("Bonjour 2"))


def test_a_line_that_is_too_long_alone_is_refused_and_the_conversation_goes_on(service: OwnService, url: str) -> None:
    said = f"{'Phileas Fogg ' * 100}\nBonjour\n"

    ended = subprocess.run(
        [sys.executable, "-m", "minilab_client", "chat", "--max-new-tokens", "8"],
        input=said,
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert ended.returncode == 2
    assert f"what you say must leave room in the model's {CONTEXT} tokens, got" in ended.stderr
    assert ended.stdout == text_of(service, jobs(service)[-1]) + "\n"


def test_a_model_without_a_template_is_refused_with_those_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    connection: redis.Redis = fake_redis(monkeypatch)
    tokenizer = get_tokenizer()
    card = replace(asked_model().card, name="chatty", chat=FORMAT)
    publish_card(connection, card, tokenizer.to_json())

    refused = client("chat", stdin="Bonjour\n")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "error: the model base has no chat template; give --model chatty\n"


def test_settings_against_a_rule_are_refused_before_anybody_says_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_redis(monkeypatch)

    assert "max_new_tokens must be" in client("chat", "--max-new-tokens", "0", stdin="").stderr


def chatting(context: int) -> AskedModel:
    model = asked_model()
    return AskedModel(replace(model.card, chat=FORMAT, context_length=context), model.tokenizer)


def test_a_quarter_of_the_context_is_kept_free_for_an_answer() -> None:
    dialogue = Dialogue()
    dialogue.keep("Bonjour", "Phileas Fogg")
    whole = len(rendered("Bonjour", "Phileas Fogg", "Encore"))

    assert dialogue.ask("Encore", chatting(2 * whole), 1000).forgotten == 0
    assert dialogue.ask("Encore", chatting(whole + 1), 1).forgotten == 0
    assert dialogue.ask("Encore", chatting(whole + 1), 1000).forgotten == 1


def test_the_system_message_is_never_left_out() -> None:
    dialogue = Dialogue("Be brief.")
    for _ in range(50):
        dialogue.keep("Bonjour", "Phileas Fogg")

    question = dialogue.ask("Encore", chatting(60), 10)

    assert question.forgotten > 40
    assert list(question.prompt)[:4] == rendered("Encore", system="Be brief.")[:4]


def test_a_refused_line_costs_the_conversation_nothing() -> None:
    dialogue = Dialogue()
    dialogue.keep("Bonjour", "Phileas Fogg")
    model = chatting(60)

    with pytest.raises(RequestError, match="must leave room in the model's 60 tokens"):
        dialogue.ask("Phileas Fogg " * 100, model, 10)

    assert list(dialogue.ask("Encore", model, 10).prompt) == rendered("Bonjour", "Phileas Fogg", "Encore")
