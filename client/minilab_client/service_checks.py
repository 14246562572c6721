"""Whether the service does its work: queues, workers, models, jobs that are stuck.

Everything is found by the names of queues and workers, so that it costs as little with a million jobs as with ten.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job

from minilab_client.findings import Finding, fail, ok, warn
from minilab_gen.errors import CardError, UnknownModelError
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, read_card, start_command
from minilab_gen.protocol.listing import our_queues
from minilab_gen.protocol.streams import ends_of
from minilab_gen.protocol.vocabulary import jobs_beyond
from minilab_gen.protocol.workers import WorkerView, all_workers

_LOOKED_AT: Final = 1000
"""Started jobs of a queue that are looked at: as many as a large worker runs."""

_NAMED: Final = 5
"""Workers that one line names."""


@dataclass(frozen=True, slots=True)
class _QueueView:
    """A queue as it stands."""

    queue: Queue
    waiting: int
    first_since: float | None
    """Seconds since its first waiting job was submitted."""
    claimed: int
    """Jobs that a worker took and has not started yet."""
    served_by: int


def service_checks(connection: redis.Redis) -> Iterator[Finding]:
    """Look at the service. Raises what redis-py raises."""
    workers = all_workers(connection)
    queues = [_look_at(connection, queue, workers) for queue in our_queues(connection)]
    yield from _workers(workers, queues)
    yield from _queues(queues)
    yield from _foreign(connection, queues)
    yield from _models(connection, queues, workers)
    yield from _stuck(connection, queues, workers)


def _look_at(connection: redis.Redis, queue: Queue, workers: Sequence[WorkerView]) -> _QueueView:
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.llen(queue.key)
        pipeline.lrange(queue.key, 0, 0)
        pipeline.llen(queue.intermediate_queue_key)
        waiting, first, claimed = pipeline.execute()
    served_by = sum(worker.serves and queue.name in worker.queues for worker in workers)
    return _QueueView(queue, waiting, _age(connection, first), claimed, served_by)


def _age(connection: redis.Redis, first: list[bytes]) -> float | None:
    created: Any = connection.hget(Job.key_for(first[0].decode(errors="replace")), "created_at") if first else None
    try:
        return time.time() - datetime.fromisoformat((created or b"").decode(errors="replace")).timestamp()
    except ValueError:
        return None


def _workers(workers: Sequence[WorkerView], queues: Sequence[_QueueView]) -> Iterator[Finding]:
    alive = [worker for worker in workers if worker.serves]
    if not alive:
        asked = [_model_of(view) for view in queues if view.waiting] or [keys.DEFAULT_MODEL]
        yield warn("workers", "none is alive, so jobs wait", f"start one: {start_command(asked[0])}")
    else:
        stats = [worker.stats for worker in alive if worker.stats]
        slots, used = sum(each.slots for each in stats), sum(each.used for each in stats)
        yield ok("workers", f"{len(alive)} alive, {used} of {slots} slots in use")
    if gone := [worker.name for worker in workers if not worker.serves]:
        yield warn(
            "workers", f"gone without a word: {_names(gone)}", "see their logs; a killed one is listed for minutes"
        )
    for worker in alive:
        if worker.stats and not worker.stats.exactness.startswith("exact"):
            found = f"{worker.name} is {worker.stats.exactness}"
            yield warn("exactness", found, "its tokens may differ from those of other batches; see docs/operations.md")


def _queues(queues: Sequence[_QueueView]) -> Iterator[Finding]:
    for view in queues:
        name = view.queue.name
        since = "" if view.first_since is None else f", the first for {view.first_since:.0f} s"
        if view.waiting and not view.served_by:
            remedy = f"start a worker: {start_command(_model_of(view))}"
            yield warn("queue", f"{name}: {view.waiting} wait{since}, and no worker serves it", remedy)
        elif view.waiting or view.served_by:
            yield ok("queue", f"{name}: {view.waiting} wait{since}, {view.served_by} serve it")


def _model_of(view: _QueueView) -> str:
    ours = keys.queue_parts(view.queue.name)
    assert ours is not None, "only queues of ours are looked at"
    return ours[0]


def _foreign(connection: redis.Redis, queues: Sequence[_QueueView]) -> Iterator[Finding]:
    """Jobs that wait under the name of a model for which they cannot have been made."""
    for view in queues:
        if not view.waiting:
            continue
        try:
            most = read_card(connection, _model_of(view)).vocab_size
        except (CardError, UnknownModelError):  # which is reported with the model
            continue
        if foreign := jobs_beyond(connection, view.queue.name, most):
            found = f"{view.queue.name}: {len(foreign)} made for another model, with ids beyond the {most} of this one"
            yield warn("queue", found, f"cancel what would fail: minilab-client cancel {' '.join(foreign)}")


def _models(connection: redis.Redis, queues: Sequence[_QueueView], workers: Sequence[WorkerView]) -> Iterator[Finding]:
    serving: dict[str, list[WorkerView]] = defaultdict(list)
    for worker in workers:
        if worker.serves and worker.stats:
            serving[worker.stats.model].append(worker)
    asked = {_model_of(view) for view in queues if view.waiting}
    for model in sorted(asked | serving.keys()):
        yield _model(connection, model, serving[model])


def _model(connection: redis.Redis, model: str, workers: Sequence[WorkerView]) -> Finding:
    """Whether clients can submit for a model, and whether its workers give the same tokens."""
    shown: dict[str, list[str]] = defaultdict(list)
    for worker in workers:
        assert worker.stats is not None, "workers of a model are known by their reports"
        shown[worker.stats.fingerprint].append(worker.name)
    if len(shown) > 1:
        different = "; ".join(f"{fingerprint}: {_names(names)}" for fingerprint, names in sorted(shown.items()))
        return fail(
            "model", f"{model} has workers that give other tokens: {different}", "serve one checkpoint by a name"
        )
    stored: Any = connection.get(keys.model_card(model))
    if stored is None and model == keys.DEFAULT_MODEL:
        return ok("model", f"{model}: no worker has announced it yet, the card that is shipped counts")
    if stored is None:
        remedy = f"start one of its workers: {start_command(model)}"
        return warn("model", f"{model}: its card has expired, nothing can be submitted", remedy)
    try:
        card = ModelCard.from_json(stored)
    except CardError as error:
        return fail("model", f"{model}: {error}", "let client and workers be of one version")
    if shown and card.fingerprint not in shown:
        found = f"{model}: its card says {card.fingerprint}, its worker {next(iter(shown))}"
        return warn("model", found, "a worker of another checkpoint had the name; it is put right within the hour")
    return ok("model", f"{model}: fingerprint {card.fingerprint}, {card.exactness}")


def _stuck(connection: redis.Redis, queues: Sequence[_QueueView], workers: Sequence[WorkerView]) -> Iterator[Finding]:
    """Jobs that only go on when a worker looks for them."""
    alive = {worker.name for worker in workers if worker.serves}
    for view in queues:
        left = _left(connection, view.queue, alive) + (0 if view.served_by else view.claimed)
        if not left:
            continue
        found = f"{view.queue.name}: {left} begun by workers that are gone"
        if view.served_by:
            yield warn("stuck", found, "none: another worker takes them over when their lease ends")
        else:
            remedy = f"start a worker, which goes on with them: {start_command(_model_of(view))}"
            yield warn("stuck", found, remedy)


def _left(connection: redis.Redis, queue: Queue, alive: set[str]) -> int:
    """Jobs that a queue's registry shows as started, whose worker is not alive and that have not ended."""
    members: Any = connection.zrange(queue.started_job_registry.key, 0, _LOOKED_AT - 1)
    job_ids = [member.decode(errors="replace").partition(":")[0] for member in members]
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hget(Job.key_for(job_id), "worker_name")
        answers: list[bytes | None] = pipeline.execute()
    holders = {job_id: name.decode(errors="replace") for job_id, name in zip(job_ids, answers, strict=True) if name}
    left = [job_id for job_id, name in holders.items() if name not in alive]
    return len(left) - len(ends_of(connection, left))


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
