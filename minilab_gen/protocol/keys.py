"""How everything in Redis is called, and how long it stays.

This is the one module that spells a key. What is ours starts with ``minilab:``; RQ's keys are RQ's.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from minilab_gen.errors import RequestError
from minilab_gen.request import shown

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
"""In the order in which a worker claims them."""

DEFAULT_MODEL: Final = "base"

TASK: Final = "minilab_gen.tasks.generate"
"""The only function that a job may name."""

RETENTION: Final = 24 * 3600
"""Seconds that a stream and a result are kept after the end: a day, so that yesterday's batch can be fetched."""

DEFAULT_TIMEOUT: Final = 3600
"""Seconds that a job may run where nothing else is said: far above any answer of a small model."""

LONGEST_TIME: Final = 30 * 24 * 3600
"""Seconds that a timeout or ttl may be at most: a month, beyond which a job is as good as forgotten."""

CARD_TTL: Final = 24 * 3600
"""Seconds that a model card outlives its last worker, so that jobs can be submitted while no worker is up."""

STATS_TTL: Final = 300
"""Seconds that a worker's last report outlives it: enough to see what it was doing."""

FINGERPRINT_FIELD: Final = "minilab_fingerprint"
"""Field of RQ's record of a job: the fingerprint of the model that has begun it."""

LEFT_FIELD: Final = "minilab_left_at"
"""The same: since when, in the server's Unix time, workers of other fingerprints have left it to one of that."""

HIDDEN_FIELD: Final = "minilab_hidden"
"""The same: there where the job was deleted for whoever asks for it by its id."""

LONGEST_JOB_ID: Final = 128
"""Characters: an id becomes part of keys."""

_JOB_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_JOB_ID}}}")  # the letters that RQ takes
_MODEL_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9_-]+(\.+[A-Za-z0-9_-]+)*")
_HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+/([A-Za-z0-9_.-]+)")

_SUFFIXES: Final[dict[Priority, str]] = {"high": ".high", "normal": "", "low": ".low"}
"""What the name of a model's queue ends with. So the name of no model may end with one of them."""

_BY_SUFFIX: Final[tuple[Priority, ...]] = ("high", "low", "normal")
"""In the order in which a name is compared with them: every name ends with nothing."""


def check_job_id(job_id: object) -> str:
    """The id, if it may become part of a key; else RequestError."""
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise RequestError(f"a job id must be 1 to {LONGEST_JOB_ID} letters, digits, _ or -, got {job_id!r}")
    return job_id


def check_model_name(model: object) -> str:
    """The name, if it may become part of a key; else RequestError."""
    if not isinstance(model, str) or not _MODEL_NAME.fullmatch(model):
        raise RequestError(
            f"a model name must be 1 to 64 letters, digits, _, - or, but at its ends, dots; got {shown(model)}"
        )
    if model.endswith(tuple(f".{priority}" for priority in PRIORITIES)):
        raise RequestError(
            f"a model name must not end in .high, .normal or .low, since queues are named so by priority; got {model!r}"
        )
    return model


def without_owner(model: str) -> str:
    """The name of a model without the owner that it has on the Hub: ``X3.2`` of ``org/X3.2``."""
    found = _HUB_NAME.fullmatch(model) if type(model) is str else None  # what is no name is refused later
    return found[1] if found else model


def queue_name(model: str, priority: Priority = "normal") -> str:
    """The RQ queue of a model's jobs."""
    return f"minilab.{model}{_SUFFIXES[priority]}"


def queue_names(model: str) -> list[str]:
    """A model's queues in the order in which they are served."""
    return [queue_name(model, priority) for priority in PRIORITIES]


def queue_parts(queue: str) -> tuple[str, Priority] | None:
    """The model and the priority of a queue of ours; None for the name of another."""
    prefix, _, model = queue.partition(".")
    priority = next(priority for priority in _BY_SUFFIX if model.endswith(_SUFFIXES[priority]))
    try:
        return (check_model_name(model.removesuffix(_SUFFIXES[priority])), priority) if prefix == "minilab" else None
    except RequestError:
        return None


def token_stream(job_id: str) -> str:
    """The stream with one entry per token and a terminal entry."""
    return f"minilab:tokens:{job_id}"


def prompt_logprobs(job_id: str) -> str:
    """The JSON text of the logprobs of a job's prompt, beside its stream, written and expiring with the end of that."""
    return f"{token_stream(job_id)}:prompt"  # so that users who may have the stream may have this


def cancel_flag(job_id: str) -> str:
    """The flag that tells the worker to stop a job."""
    return f"minilab:cancel:{job_id}"


def expired_leases(job_id: str) -> str:
    """How many workers lost their lease while they ran a job."""
    return f"minilab:expired-leases:{job_id}"


def model_card(model: str) -> str:
    """The JSON text of a model card."""
    return f"minilab:model:{model}"


def tokenizer(digest: str) -> str:
    """The ``tokenizer.json`` whose SHA-256 begins so."""
    return f"minilab:tokenizer:{digest}"


def worker_lease(worker: str) -> str:
    """Present while a worker of ours is alive."""
    return f"minilab:worker:{worker}"


def limits(api_key: str) -> str:
    """What an API key of the gateways has used of its limits, by the name of the key."""
    return f"minilab:limits:{api_key}"


def worker_stats(worker: str) -> str:
    """The JSON text of a worker's last report about itself."""
    return f"minilab:stats:{worker}"


def stored_file(file_id: str) -> str:
    """The hash of a file that came in over HTTP, or of the answers of a batch."""
    return f"minilab:file:{file_id}"


def file_parts(file_id: str) -> str:
    """The list whose items, joined, are the content of a file."""
    return f"{stored_file(file_id)}:parts"


def files_of(owner: str) -> str:
    """The sorted set of the files of an API key, by the time at which they came."""
    return f"minilab:files:{owner}"


def uploads_of(owner: str) -> str:
    """The hash of the uploads of an API key that are under way: their bytes at most, and until when they count."""
    return f"minilab:uploads:{owner}"


def batch(batch_id: str) -> str:
    """The hash of a batch that came in over HTTP."""
    return f"minilab:batch:{batch_id}"


def batch_done(batch_id: str) -> str:
    """The set of the numbers of its lines that stand in one of its two files."""
    return f"{batch(batch_id)}:done"


def batch_driver(batch_id: str) -> str:
    """Present while a gateway drives a batch: a random name of that."""
    return f"{batch(batch_id)}:driver"


def batches_of(owner: str) -> str:
    """The sorted set of the batches of an API key, by the time at which they came."""
    return f"minilab:batches:{owner}"


OPEN_BATCHES: Final = "minilab:open-batches"
"""The sorted set of the batches that have not ended, of all keys."""
