"""What tests of the gateway share: a gateway on a socket, and a worker behind it. No assertion."""

from __future__ import annotations

import json
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from minilab_worker.serving import ServedModel, load_served_model
from minilab_worker.worker import MakeEngine, Worker, WorkerSettings, make_engine
from support.call_templates import QWEN
from support.engines import slow_engine, slower_engine
from support.waiting import wait_until

from gateway.browsing import browser, context, page
from gateway.gateway_process import Gateway
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import all_cards, publish_card
from minilab_gen.protocol.jobs import queue_of

__all__ = ["browser", "context", "page"]  # fixtures

StartGateway = Callable[..., Gateway]

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% if shout %}!{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
)


@pytest.fixture
def start_gateway(server: redis.Redis, server_url: str, tmp_path: Path) -> Iterator[StartGateway]:
    """Start gateways on the shared server; all are ended."""
    with ExitStack() as stack:

        def start(*options: str, url: str = server_url, **variables: str) -> Gateway:
            log = tmp_path / f"gateway-{secrets.token_hex(4)}.log"
            return stack.enter_context(Gateway(url, log, *options, **variables))

        yield start


@pytest.fixture(scope="module")
def shared_gateway(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests of a module that need nothing special: it keeps nothing of its own.

    It ends with the module, as others count the connections to the shared server.
    """
    with Gateway(server_url, tmp_path_factory.mktemp("gateway") / "log", "--queue-wait", "0.5") as shared:
        yield shared


@pytest.fixture
def gateway(shared_gateway: Gateway, start_worker: Callable[..., Worker]) -> Gateway:
    """A gateway, and a worker of the small model."""
    start_worker()
    return shared_gateway


@pytest.fixture(scope="session")
def chat_served(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """The small model with a chat template, under the name of the base model."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(small_checkpoint, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return load_served_model(folder, keys.DEFAULT_MODEL, max_batch=4, threads=None)


@pytest.fixture(scope="session")
def tools_served(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """The small model with room for the template of a family that calls tools, under the name of the base model."""
    folder = tmp_path_factory.mktemp("tools") / "model"
    shutil.copytree(small_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": QWEN}))
    return load_served_model(folder, keys.DEFAULT_MODEL, max_batch=4, threads=None)


@contextmanager
def served_chats(server: redis.Redis, served: ServedModel, engine: MakeEngine = make_engine) -> Iterator[None]:
    """A worker of a model that chats, once it has announced it: a card without chats may stand there before."""
    worker = Worker(WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), 4), served, engine)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        wait_until(lambda: any(card.chat is not None for card in all_cards(server)))
        yield
    finally:
        worker.stop()
        thread.join()


@pytest.fixture
def chat_gateway(shared_gateway: Gateway, server: redis.Redis, chat_served: ServedModel) -> Iterator[Gateway]:
    """A gateway, and a worker of a model that chats."""
    with served_chats(server, chat_served):
        yield shared_gateway


@pytest.fixture
def tools_gateway(shared_gateway: Gateway, server: redis.Redis, tools_served: ServedModel) -> Iterator[Gateway]:
    """A gateway, and a worker of a model that calls tools."""
    with served_chats(server, tools_served):
        yield shared_gateway


@pytest.fixture
def slow_chat_gateway(shared_gateway: Gateway, server: redis.Redis, chat_served: ServedModel) -> Iterator[Gateway]:
    """The same, slow enough for things to happen in the middle of an answer."""
    with served_chats(server, chat_served, slower_engine):
        yield shared_gateway


@pytest.fixture
def slow_gateway(shared_gateway: Gateway, start_worker: Callable[..., Worker]) -> Gateway:
    """The same with a worker that is slow enough for things to happen in the middle of a job."""
    start_worker(engine=slow_engine)
    return shared_gateway


def taken_by_hand(server: redis.Redis, served: ServedModel) -> Callable[[], str]:
    """Announce a worker that does nothing; what is returned waits for the next job, takes it, and gives its id."""
    publish_card(server, served.card, served.tokenizer.to_json())
    worker = "minilab-by-hand"
    server.sadd(f"rq:workers:{keys.queue_name('base')}", f"rq:worker:{worker}")
    server.set(keys.worker_lease(worker), 1)

    def next_job() -> str:
        queue = queue_of(server, keys.queue_name("base"))
        wait_until(lambda: queue.count)
        (job_id,) = queue.job_ids
        queue.remove(job_id)
        return job_id

    return next_job


@pytest.fixture
def by_hand(shared_gateway: Gateway, server: redis.Redis, served: ServedModel) -> Callable[[], str]:
    """A worker that is there and does nothing: jobs are ended by the test, by the id that this waits for."""
    return taken_by_hand(server, served)
