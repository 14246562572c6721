"""What tests share: Redis in two kinds, a small model, a worker. It must not hold any assertion."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fakeredis
import pytest
import redis
import torch
from chaos.checkpoint import write_slow_checkpoint
from minilab_worker.serving import ServedModel, load_served_model
from minilab_worker.worker import MakeEngine, Worker, WorkerSettings, make_engine
from support.own_service import OwnService, own_service_of

from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.torch_checkpoint import write_checkpoint
from minilab_gen.protocol import embedded, keys
from minilab_gen.text.tokenizer import get_tokenizer

pytest_plugins = ["support.private_server", "support.redis_users", "support.run_guard", "support.tail_readers"]

SLOW_FIXTURES = frozenset(
    {"burst", "demonstration", "minilab_worker", "own_service", "slow_checkpoint", "start_worker", "two_models"}
)
"""Fixtures that start workers, in processes or in threads: whatever test uses one, directly or not, is slow."""

SMALL = ModelConfig(vocab_size=2048, context_length=64, n_layer=2, n_head=8, n_kv_head=1, d_model=64, d_hidden=64)
"""A model with the base model's vocabulary that answers in a fraction of a millisecond."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow for what they use, so that a new test of that kind need not be remembered."""
    for item in items:
        if isinstance(item, pytest.Function) and SLOW_FIXTURES.intersection(item.fixturenames):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on products as small as the tests' only wait for each other, minutes on a loaded machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_given_size() -> None:
    """Programs ask a test's own terminal for its size; processes of pytest-xdist inherit one that readline has set."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server, the one that users without a Redis get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINILAB_HOME", str(tmp_path_factory.mktemp("redis")))
        url = embedded.start().url
        yield url
        embedded.stop()


@pytest.fixture
def server(server_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A connection to the real server, emptied; ``MINILAB_REDIS_URL`` leads there."""
    monkeypatch.setenv("MINILAB_REDIS_URL", server_url)
    with redis.Redis.from_url(server_url, protocol=2, legacy_responses=True) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the tester's server nor retries, which are slow: connections are tried once, where a test says."""
    monkeypatch.delenv("MINILAB_REDIS_URL", raising=False)
    monkeypatch.setattr("minilab_gen.protocol.connection.RETRIES", 0)


@pytest.fixture(params=["fakeredis", "server"])
def connection(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """An empty Redis, once a fake one and once the real one: every stream test runs on both."""
    if request.param == "server":
        yield request.getfixturevalue("server")
        return
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True) as fake:
        yield fake


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with random weights, large enough that its answers vary."""
    torch.manual_seed(5)
    model = MiniLabModel(SMALL)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, model, get_tokenizer())
    return folder


@pytest.fixture(scope="session")
def served(small_checkpoint: Path) -> ServedModel:
    """The small model as a worker serves it, under the name of the base model."""
    return load_served_model(small_checkpoint, keys.DEFAULT_MODEL, max_batch=4, threads=None)


@pytest.fixture
def start_worker(server: redis.Redis, served: ServedModel) -> Iterator[Callable[..., Worker]]:
    """Start workers of the small model on the real server, in threads; all are stopped at the end."""
    with ExitStack() as stack:

        def start(
            max_batch: int = 4, *, burst: bool = False, lease: int = 15, engine: MakeEngine = make_engine
        ) -> Worker:
            queues = tuple(keys.queue_names(keys.DEFAULT_MODEL))
            worker = Worker(WorkerSettings(queues, max_batch, burst=burst, lease=lease), served, engine)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            return worker

        yield start


@pytest.fixture(scope="session")
def slow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose jobs last long enough for a test to act in the middle of one."""
    return write_slow_checkpoint(tmp_path_factory.mktemp("slow"))


@pytest.fixture
def own_service(slow_checkpoint: Path) -> Iterator[OwnService]:
    """A Redis that may be killed, and no worker yet."""
    with own_service_of(slow_checkpoint) as service:
        yield service
