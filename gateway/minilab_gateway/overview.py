"""What the page shows beside answers: the workers and queues as they stand, and a key's own jobs. Read-only."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import redis
from fastapi import APIRouter, Request
from fastapi.responses import Response
from rq.job import Job

from minilab_gateway.api_keys import ApiKey
from minilab_gateway.completion import PREFIXES, public_id
from minilab_gateway.doors import key_of
from minilab_gateway.errors import ApiError
from minilab_gateway.json_bytes import encoded
from minilab_gateway.notes import Note
from minilab_gateway.service import Service
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import JobState
from minilab_gen.protocol.groups import group_in, state_of_all
from minilab_gen.protocol.listing import JobRow, Wanted, newest_jobs, our_queues
from minilab_gen.protocol.submission import NOTES
from minilab_gen.protocol.workers import WorkerView, all_workers
from minilab_gen.request import shown

_FRESH: Final = 0.5
"""Seconds for which one look serves all who ask: pages ask each second."""

_STALE: Final = 5.0
"""Seconds after which a worker's report tells no speed any more; workers report each second."""

_LOOKED_AT: Final = 1000
"""Jobs among which a key's own are looked for, newest first."""

_MOST_LISTED: Final = 100

_ROUND: Final = 100
"""Jobs whose notes are read in one round trip."""


class Overview:
    """Looks at the service. Its calls block."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._looking = Lock()
        self._seen: dict[str, Any] = {}
        self._seen_at = float("-inf")

    def service(self, key: ApiKey) -> dict[str, Any]:
        """The workers and queues of the models that a key may ask."""
        with self._looking:
            if time.monotonic() - self._seen_at > _FRESH:
                self._seen, self._seen_at = self._look(), time.monotonic()
            seen = self._seen
        return {
            "object": "service",
            "workers": [worker for worker in seen["workers"] if key.may_ask(worker["model"])],
            "models": [model for model in seen["models"] if key.may_ask(model["id"])],
        }

    def jobs(self, owner: str, limit: int) -> list[dict[str, Any]]:
        """The newest answers of an owner, those of one request together."""
        found: dict[str, _Listed] = {}
        rows: list[JobRow] = []
        for looked_at, row in enumerate(newest_jobs(self._connection, Wanted(), lambda _: None), start=1):
            rows.append(row)
            if looked_at % _ROUND and looked_at < _LOOKED_AT:
                continue
            self._take(found, rows, owner)
            rows = []
            if looked_at >= _LOOKED_AT or len(found) > limit:
                break
        self._take(found, rows, owner)
        return [listed.to_json() for listed in list(found.values())[:limit]]

    def _take(self, found: dict[str, _Listed], rows: list[JobRow], owner: str) -> None:
        with self._connection.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.hget(Job.key_for(row.job_id), "meta")
            metas = pipeline.execute(raise_on_error=False)
        for row, raw in zip(rows, metas, strict=True):
            meta = _object(raw)
            note = _note_in(meta)
            if note.owner == owner and note.route in PREFIXES:
                name = group_in(meta) or row.job_id
                found.setdefault(name, _Listed(name, note)).rows.append(row)

    def _look(self) -> dict[str, Any]:
        workers = all_workers(self._connection)
        queues = our_queues(self._connection)
        with self._connection.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.llen(queue.key)
                pipeline.zcount(queue.started_job_registry.key, "-inf", "+inf")
            counts = pipeline.execute(raise_on_error=False)
        models: dict[str, dict[str, Any]] = {}
        for queue, waiting, running in zip(queues, counts[::2], counts[1::2], strict=True):
            parts = keys.queue_parts(queue.name)
            assert parts is not None, "only our queues are looked at"
            line = models.setdefault(parts[0], {"id": parts[0], "queued": 0, "running": 0})
            line["queued"] += waiting if isinstance(waiting, int) else 0
            line["running"] += running if isinstance(running, int) else 0
        lines = [_worker(worker) for worker in workers]
        for worker in lines:
            models.setdefault(worker["model"], {"id": worker["model"], "queued": 0, "running": 0})
        return {"workers": lines, "models": [models[name] for name in sorted(models)]}


def overview_router(service: Service, overview: Overview) -> APIRouter:
    """``/service`` and ``/service/jobs``."""
    router = APIRouter()

    @router.get("/service", summary="The workers and queues, as they stand", response_class=Response)
    async def standing(request: Request) -> Response:
        found = await service.run(overview.service, key_of(request.scope))
        return Response(encoded(found), media_type="application/json")

    @router.get("/service/jobs", summary="The newest answers of this key", response_class=Response)
    async def jobs(request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", "20"))
        found = await service.run(overview.jobs, key_of(request.scope).name, limit)
        return Response(encoded({"object": "list", "data": found}), media_type="application/json")

    return router


@dataclass(slots=True)
class _Listed:
    """The jobs that answer one request."""

    name: str
    note: Note
    rows: list[JobRow] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        rows, note = self.rows, self.note
        states: list[JobState] = [row.state for row in rows]
        ends = [row.end for row in rows if row.end is not None]
        return {
            "id": public_id(self.name, note.route),
            "object": "service.job",
            "route": note.route,
            "created": rows[0].created,
            "model": rows[0].model,
            "state": state_of_all(states),
            "end": ends[0] if len(ends) == len(rows) else None,
            "answers": len(rows),
            "tokens": sum(row.tokens for row in rows),
            "max_tokens": note.new_tokens * len(rows) or None,
        }


def _object(raw: Any) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, TypeError, RecursionError):  # none there, or another program's
        return {}
    return found if isinstance(found, dict) else {}


def _note_in(meta: dict[str, Any]) -> Note:
    """The note in a job's meta; for a job that no gateway made, one without an owner."""
    try:
        return Note(**meta[NOTES]["gateway"])
    except (KeyError, TypeError):
        return Note("text", "", 0, "")


def _worker(worker: WorkerView) -> dict[str, Any]:
    stats = worker.stats
    parts = [found[0] for name in worker.queues if (found := keys.queue_parts(name))]
    is_fresh = worker.serves and worker.heartbeat_age is not None and worker.heartbeat_age < _STALE
    return {
        "name": worker.name,
        "model": stats.model if stats is not None else (parts or [""])[0],
        "state": "up" if worker.serves else "lost",
        "used": None if stats is None else stats.used,
        "slots": None if stats is None else stats.slots,
        "tokens": None if stats is None else stats.tokens,
        "tokens_per_second": None if stats is None else stats.tokens_per_second if is_fresh else 0.0,
        "started_at": None if stats is None else stats.started_at,
    }


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_LISTED):
        rule = f"limit must be a whole number from 1 to {_MOST_LISTED}"
        raise ApiError(400, f"{rule}, got {shown(text)}", param="limit")
    return int(text)
