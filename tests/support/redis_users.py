"""The two users of Redis that docs/security.md gives, and workers that connect as one: a pytest plugin, no test."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings, make_engine

from minilab_gen.protocol import keys
from minilab_gen.request import GenerationRequest
from support.engines import slow_engine

DOCUMENT: Final = Path(__file__).parent.parent.parent / "docs" / "security.md"

CLIENT, WORKER = "minilab-client", "minilab-worker"

PASSWORDS: Final = {CLIENT: "c/ient@secret?#1", WORKER: "w:rker%secret&2"}
"""With every character that an address must not hold as it is."""

LONG = GenerationRequest((5, 6), max_new_tokens=60)

LEASE = 3

Urls = dict[str, str]


def documented_rules() -> dict[str, list[str]]:
    """The rules of each user, as the document's shell block gives them to redis-cli."""
    (block,) = re.findall(r"```sh\n(redis-cli ACL SETUSER.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    lines = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line]
    assert all(words[:3] == ["redis-cli", "ACL", "SETUSER"] for words in lines)
    return {words[3]: words[4:] for words in lines}


@pytest.fixture
def user_urls(server: redis.Redis, server_url: str) -> Iterator[Urls]:
    """The addresses of both users; that nothing they did was denied unasked, is for :func:`denials` to tell."""
    for user, rules in documented_rules().items():
        given = [f">{PASSWORDS[user]}" if rule.startswith(">") else rule for rule in rules]
        server.execute_command("ACL", "SETUSER", user, *given)
    server.acl_log_reset()
    try:
        yield {
            user: server_url.replace("unix://", f"unix://{user}:{quote(password, safe='')}@")
            for user, password in PASSWORDS.items()
        }
    finally:
        server.acl_deluser(CLIENT, WORKER)


@pytest.fixture
def start_restricted(user_urls: Urls, served: ServedModel) -> Iterator[Callable[..., Worker]]:
    """Start workers in threads, connected as the worker's user; all are stopped at the end."""
    with ExitStack() as stack:

        def start(*, grace: float = 25.0, slow: bool = False) -> Worker:
            queues = tuple(keys.queue_names(keys.DEFAULT_MODEL))
            settings = WorkerSettings(queues, 4, redis_url=user_urls[WORKER], lease=LEASE, grace=grace)
            worker = Worker(settings, served, slow_engine if slow else make_engine)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            return worker

        yield start


def denials(server: redis.Redis) -> list[tuple[str, str]]:
    """What was denied to which user since the last look."""
    log: Any = server.acl_log()
    server.acl_log_reset()
    return [(entry["username"], entry["object"]) for entry in log]
