"""What a worker finds out before it loads its model: a wrong folder, a wrong Redis. It is said at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from chaos.server import BINARY, Server
from minilab_worker import outage
from minilab_worker.model_names import check_waiting
from support.client_process import environment
from support.client_program import client
from support.scripted_server import free_port
from support.waiting import LIMIT, wait_until
from support.worker_process import start_of_worker

from minilab_gen.errors import CheckpointError, RedisUnavailableError, RequestError
from minilab_gen.models.checkpoint_folder import check_folder
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, digest, publish_card, read_card
from minilab_gen.protocol.jobs import fetch, recorded_state
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, get_tokenizer, train_tokenizer

pytestmark = pytest.mark.slow

NOWHERE = "unix:///nowhere/redis.sock"
"""What a start that gets as far as Redis would wait for."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped checkpoint, to be spoilt."""
    return shutil.copytree(BASE_CHECKPOINT, tmp_path / "model")


@pytest.fixture
def own_server() -> Iterator[tuple[Server, redis.Redis]]:
    if BINARY is None:
        pytest.skip("needs redis-server or valkey-server on the PATH")
    with TemporaryDirectory(prefix="ml-") as name, Server(Path(name)) as server, server.connect() as connection:
        yield server, connection


# the folder


@pytest.mark.parametrize("arguments", [["--model", "/nope"], ["--model", "/nope", "--name", "base"]])
def test_a_folder_that_is_not_there_is_told_before_kernels_are_loaded_or_redis_asked(arguments: list[str]) -> None:
    code, said = start_of_worker(*arguments, url=NOWHERE)

    assert (code, said.count("\n")) == (2, 1)
    assert said.endswith("; there is no folder /nope\n")


def test_a_name_of_the_hub_gets_the_command_that_fetches_it() -> None:
    with pytest.raises(CheckpointError) as caught:
        check_folder(Path("HuggingFaceTB/SmolLM2-135M"))

    assert "hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M" in str(caught.value)


def _cut_weights_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 100_000)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be read: No such file"),
        (lambda folder: (folder / "config.json").write_text("{}"), r"config\.json: the architecture must be one of"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"tokenizer\.json cannot be read: No such file"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors cannot be read: No such file"),
        (_cut_weights_short, r"model\.safetensors cannot be read: it is cut short, 100000 of"),
    ],
)
def test_a_folder_that_can_never_be_loaded_is_refused(
    folder: Path, spoil: Callable[[Path], object], message: str
) -> None:
    check_folder(folder)
    spoil(folder)

    with pytest.raises(CheckpointError, match=message):
        check_folder(folder)


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a checkpoint must be a folder .*/config\.json is a file"):
        check_folder(folder / "config.json")


def test_a_folder_that_is_well_gives_its_tokenizer() -> None:
    assert check_folder(BASE_CHECKPOINT).to_json() == get_tokenizer().to_json()


# Redis


def test_a_redis_that_refuses_the_login_is_told_before_loading(
    own_server: tuple[Server, redis.Redis],
) -> None:
    server, _ = own_server

    code, said = start_of_worker(url=server.url.replace("unix://", "unix://me:wrong@"))

    assert (code, said.count("\n")) == (4, 1)
    assert "refuses the login" in said


def test_a_redis_that_is_not_there_is_waited_for_aloud_and_before_anything_is_loaded() -> None:
    address = f"redis://127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [sys.executable, "-m", "minilab_worker.cli"], env=environment(address), stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stderr is not None
        first = worker.stderr.readline()
        worker.terminate()
        worker.wait(timeout=LIMIT)

    assert f"waiting up to 60 s for Redis at {address}" in first


def test_a_redis_that_refuses_writes_is_waited_for_until_it_takes_them(
    own_server: tuple[Server, redis.Redis], caplog: pytest.LogCaptureFixture
) -> None:
    _, connection = own_server
    connection.execute_command("REPLICAOF", "127.0.0.1", "1")
    waiting = threading.Thread(target=outage.wait_for_writes, args=(connection,))

    waiting.start()
    wait_until(lambda: caplog.records)
    assert waiting.is_alive()
    connection.execute_command("REPLICAOF", "NO", "ONE")
    waiting.join(timeout=LIMIT)

    assert not waiting.is_alive()
    (message,) = caplog.messages
    assert message.startswith("waiting up to 60 s for a Redis that takes writes: Redis only serves readers")
    assert connection.keys() == []


def test_a_redis_that_refuses_writes_is_not_waited_for_for_ever(
    own_server: tuple[Server, redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, connection = own_server
    connection.config_set("maxmemory", "1")
    monkeypatch.setattr(outage, "REDIS_LIMIT", 0.2)

    with pytest.raises(RedisUnavailableError, match=r"Redis is full: .* raise its maxmemory: `redis-cli -s "):
        outage.wait_for_writes(connection)


def test_a_worker_asks_whether_redis_takes_writes_before_it_loads(own_server: tuple[Server, redis.Redis]) -> None:
    server, connection = own_server
    connection.execute_command("REPLICAOF", "127.0.0.1", "1")
    with subprocess.Popen(
        [sys.executable, "-m", "minilab_worker.cli"], env=environment(server.url), stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stderr is not None
        first = worker.stderr.readline()
        worker.terminate()
        worker.wait(timeout=LIMIT)

    assert "waiting up to 60 s for a Redis that takes writes: Redis only serves readers" in first


# jobs that wait for another model


OTHER = ModelCard("other", 64, 300, (0,), "f" * 16, "exact", tokenizer=digest("another tokenizer"))


def wait_in_queue(connection: redis.Redis, model: str, *job_ids: str, prompt: tuple[int, ...] = (5, 6)) -> None:
    for job_id in job_ids:
        enqueue(connection, GenerationRequest(prompt), Submission(model, job_id, "high"))


def test_a_worker_does_not_serve_jobs_that_were_made_for_another_tokenizer(
    own_server: tuple[Server, redis.Redis],
) -> None:
    server, connection = own_server
    publish_card(connection, OTHER, "another tokenizer")
    wait_in_queue(connection, "other", "x", "y")

    code, said = start_of_worker("--name", "other", url=server.url)

    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error: 2 jobs wait for other and were made for a model with another tokenizer")
    assert read_card(connection, "other") == OTHER
    remedy = said.strip().rpartition("minilab-client ")[2].split()
    assert client(*remedy, "--yes", MINILAB_REDIS_URL=server.url).stdout == "2 cancelled\n"
    check_waiting(connection, keys.queue_names("other"), get_tokenizer())


def test_the_queues_that_a_worker_is_told_to_serve_count_as_well(own_server: tuple[Server, redis.Redis]) -> None:
    server, connection = own_server
    publish_card(connection, OTHER, "another tokenizer")
    wait_in_queue(connection, "other", "x")

    code, said = start_of_worker("--queue", "minilab.other.high", url=server.url)

    assert code == 2
    assert said.startswith("error: 1 job waits for other and was made for a model with another tokenizer")


def test_jobs_for_the_shipped_model_were_made_with_its_tokenizer(own_server: tuple[Server, redis.Redis]) -> None:
    _, connection = own_server
    wait_in_queue(connection, "base", "x")
    own = train_tokenizer(["Another text, for a tokenizer of its own."], 300)

    check_waiting(connection, keys.queue_names("base"), get_tokenizer())
    with pytest.raises(RequestError, match="1 job waits for base"):
        check_waiting(connection, keys.queue_names("base"), own)


def test_a_name_for_which_nothing_waits_is_free(own_server: tuple[Server, redis.Redis]) -> None:
    _, connection = own_server
    publish_card(connection, OTHER, "another tokenizer")

    check_waiting(connection, keys.queue_names("other"), get_tokenizer())


@pytest.mark.parametrize("card", [None, "{}"])
def test_without_a_card_ids_that_are_not_known_are_warned_of(
    own_server: tuple[Server, redis.Redis], caplog: pytest.LogCaptureFixture, card: str | None
) -> None:
    _, connection = own_server
    if card is not None:
        connection.set(keys.model_card("other"), card)
    wait_in_queue(connection, "other", "x")
    connection.rpush("rq:queue:minilab.other.high", "gone", b"\xff")
    connection.set("rq:job:odd", "no record")
    connection.rpush("rq:queue:minilab.other.high", "odd")
    check_waiting(connection, keys.queue_names("other"), get_tokenizer())
    assert caplog.messages == []

    wait_in_queue(connection, "other", "y", prompt=(2048,))

    check_waiting(connection, keys.queue_names("other"), get_tokenizer())
    (message,) = caplog.messages
    assert "1 job waits in minilab.other.high with ids beyond the 2048 that this model knows" in message
    assert message.endswith("minilab-client cancel y")


# what it loads


def test_a_worker_runs_jobs_without_torch(server: redis.Redis) -> None:
    """Which takes 200 MB and a second or two, and which a worker's image does not hold."""
    job_id = enqueue(server, GenerationRequest((5, 6, 7), 8), Submission())
    run = "import sys; sys.modules['torch'] = None; from minilab_worker.cli import main; main()"
    url = os.environ["MINILAB_REDIS_URL"]

    ended = subprocess.run(
        [sys.executable, "-c", run, "--burst"],
        env=environment(url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert recorded_state(fetch(server, job_id)) == "finished"
