"""The name of a model, and checks that no other model has it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import redis

from minilab_gen.errors import CardError, RequestError, UnknownModelError
from minilab_gen.protocol import keys
from minilab_gen.protocol.bulk_cancel import count_waiting
from minilab_gen.protocol.cards import ModelCard, announced_card, digest, read_card
from minilab_gen.protocol.jobs import workers_alive
from minilab_gen.protocol.vocabulary import jobs_beyond
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, Tokenizer
from minilab_worker.hub import repository_of

_log = logging.getLogger(__name__)

_LONGEST_NAME: Final = 64
"""Characters of a name at most; :func:`~minilab_gen.protocol.keys.check_model_name` has the rule."""


def default_name(folder: Path) -> str:
    """The name of a checkpoint's folder or file with ``-`` for what must not be in it; ``base`` for the shipped model.

    A folder that is called as on the Hub, such as ``Llama-3.2-1B``, keeps its name, so that clients can ask for it; so
    does a snapshot in the Hub's cache, whose folder is called by a hash.
    """
    path = folder.absolute() if folder.is_file() else folder.resolve()  # files in the Hub's cache are links to hashes
    if path == BASE_CHECKPOINT.resolve():
        return keys.DEFAULT_MODEL
    called = repository_of(path) or path.name.removesuffix(".gguf")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", called)[:_LONGEST_NAME].strip("-.")
    name = re.sub(rf"\.({'|'.join(keys.PRIORITIES)})$", r"-\1", name)  # which a name must not end with
    if not name:
        raise RequestError(f"the folder {path} gives no name for its model; choose one with --name")
    return name


def check_waiting(connection: redis.Redis, queues: Iterable[str], tokenizer: Tokenizer) -> None:
    """See that no jobs wait in these queues whose ids mean another text to this tokenizer.

    Jobs do not say for which tokenizer they were made, but the model's last card does: RequestError. Where it has
    expired, ids that are not known here are warned of.
    """
    models = dict.fromkeys(parts[0] for queue in queues if (parts := keys.queue_parts(queue)))
    for model in models:
        waiting = count_waiting(connection, model)
        if waiting and _last_tokenizer(connection, model) not in (None, digest(tokenizer.to_json())):
            raise RequestError(
                f"{_jobs(waiting)} for {model} and {'was' if waiting == 1 else 'were'} made for a model with another "
                "tokenizer, so that the ids mean another text here; serve that model's folder, or give this one "
                f"another --name, or cancel them: minilab-client cancel --all-queued --model {model}"
            )
        for queue in keys.queue_names(model):
            if foreign := jobs_beyond(connection, queue, tokenizer.vocab_size):
                _log.warning(
                    "%s in %s with ids beyond the %d that this model knows: made for another model, it will fail; "
                    "cancel it before that: minilab-client cancel %s",
                    _jobs(len(foreign)),
                    queue,
                    tokenizer.vocab_size,
                    " ".join(foreign),
                )


def _jobs(count: int) -> str:
    return f"{count} job{' waits' if count == 1 else 's wait'}"


def _last_tokenizer(connection: redis.Redis, model: str) -> str | None:
    """The hash of the tokenizer with which clients made a model's jobs; None where it is not known."""
    try:
        return read_card(connection, model).tokenizer
    except (CardError, UnknownModelError):
        return None


def check_tokenizer(connection: redis.Redis, name: str, tokenizer: str) -> None:
    """See that no live worker has another tokenizer, given by its hash, under this name: RequestError.

    The ids of a prompt would mean another text there.
    """
    other = _live_card(connection, name)
    if other is not None and other.tokenizer != tokenizer:
        raise RequestError(
            f"a live worker serves another model as {name}, with another tokenizer; "
            "give this one another --name, or stop that worker first"
        )


def _live_card(connection: redis.Redis, name: str) -> ModelCard | None:
    try:
        card = announced_card(connection, name)
    except CardError:  # of another version, which cannot be compared
        return None
    return card if card is not None and workers_alive(connection, keys.queue_name(name)) else None


def check_announced_model(connection: redis.Redis, card: ModelCard) -> None:
    """See that no live worker serves another model under this name. Raises RequestError for another tokenizer.

    Other weights are only warned of, since a fleet that is upgraded has both for a while.
    """
    check_tokenizer(connection, card.name, card.tokenizer)
    other = _live_card(connection, card.name)
    if other is None or other.fingerprint == card.fingerprint:
        return
    _log.warning(
        "a live worker serves %s with other weights, data type or numerics, its fingerprint is %s, the one here is %s: "
        "either may answer a job, and neither continues the other's output",
        card.name,
        other.fingerprint,
        card.fingerprint,
    )
