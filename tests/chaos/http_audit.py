"""The check over all that was asked over HTTP: no second job, no token lost, doubled or different for any client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

import httpx2 as httpx
import redis

from chaos.audit import Audit
from chaos.checkpoint import Answers
from chaos.http_clients import HttpClient
from chaos.http_compare import is_beginning, stream_fault
from chaos.http_load import URLS
from chaos.load import PlannedJob
from minilab_gen.openai.objects import Heading, completion_object
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, RawEntry, TokenEvent, decode_entry
from minilab_gen.protocol.results import Answer
from minilab_gen.protocol.submission import Submission
from minilab_gen.text.tokenizer import get_tokenizer

_RECORDS: Final = "rq:job:"

_MOST_FURTHER: Final = 2
"""Tokens that may follow when a job has been asked to stop."""


def http_jobs(connection: redis.Redis) -> dict[str, tuple[str, int]]:
    """All jobs that gateways have made: the digest of the body, and which of its answers it is."""
    found = {}
    for key in map(bytes.decode, cast(list[bytes], connection.keys(f"{_RECORDS}*"))):
        meta = json.loads(cast(bytes | None, connection.hget(key, "meta")) or b"{}")
        digest = meta.get("notes", {}).get("gateway", {}).get("digest")
        if digest is not None:
            found[key.removeprefix(_RECORDS)] = digest, meta.get("group", {}).get("index", 0)
    return found


class HttpAudit:
    """Looks at one client after the other."""

    def __init__(self, connection: redis.Redis, audit: Audit, answers: Answers, http: httpx.Client) -> None:
        """``http`` asks a gateway that nothing happens to; what is found is added to what the audit has found."""
        self._connection, self._audit, self._answers, self._http = connection, audit, answers, http
        self._findings = audit.findings

    def check(self, clients: Sequence[HttpClient], *, may_forget: bool) -> None:
        """Check the jobs of all clients, then what each was sent. Redis ``may_forget`` where it was killed."""
        jobs = http_jobs(self._connection)
        for client in clients:
            own = sorted(job_id for job_id, (digest, _) in jobs.items() if digest == client.plan.digest)
            self._check_jobs(client, own, {job_id: jobs[job_id][1] for job_id in own})
            self._check_client(client, may_forget=may_forget)

    def _check_jobs(self, client: HttpClient, own: list[str], index: dict[str, int]) -> None:
        plan, who = client.plan, f"client {client.plan.number}"
        if plan.has_key and len(own) > plan.ask.n:
            self._findings.doubled.append(f"{who}: {plan.ask.n} answers were asked for, and {len(own)} jobs made")
        elif plan.has_key and own != sorted(client.job_ids):
            self._findings.lost.append(f"{who}: it was told of {client.job_ids}, and the jobs are {own}")
        may_be_cancelled = not plan.has_key or plan.cancels_after is not None
        self._audit.check_jobs(
            [
                PlannedJob(
                    job_id,
                    plan.ask.requests[index[job_id]],
                    Submission(job_id=job_id),
                    plan.at,
                    plan.at if may_be_cancelled else None,
                    twice=False,
                )
                for job_id in own
            ]
        )
        for job_id, tokens in client.stopped_at.items():
            end = self._events(job_id)[-1:]
            if end and isinstance(end[0], EndEvent) and end[0].tokens > tokens + _MOST_FURTHER:
                self._findings.different.append(f"{job_id}: {end[0].tokens} tokens, asked to stop at {tokens}")

    def _check_client(self, client: HttpClient, *, may_forget: bool) -> None:
        who, plan = f"client {client.plan.number}", client.plan
        if client.failure is not None:
            self._findings.different.append(f"{who}: {client.failure}")
            return
        if client.forgotten and not may_forget:
            self._findings.lost.append(f"{who}: {client.forgotten[0]}")
        if not plan.has_key:
            return
        if not client.has_ended:
            self._findings.lost.append(f"{who}: its answer has not ended")
            return
        streams = [self._events(job_id) for job_id in client.job_ids]
        ends = [events[-1] for events in streams if events and isinstance(events[-1], EndEvent)]
        if len(ends) < len(streams):
            return  # the audit of the jobs has found it
        if client.error is not None:
            if all(end.reason != "error" for end in ends):
                self._findings.different.append(f"{who}: was told {client.error}, which is not so")
            return
        self._compare(client, ends)

    def _compare(self, client: HttpClient, ends: list[EndEvent]) -> None:
        who, path = f"client {client.plan.number} ({client.name})", f"{URLS[client.plan.ask.route]}/{client.name}"
        whole = self._http.get(path).json()
        expected = self._expected(client, ends, whole)
        if whole != expected:
            self._findings.different.append(f"{who}: the answer is {whole} instead of {expected}")
        elif client.answer is not None and client.answer != whole:
            self._findings.different.append(f"{who}: the answer was {client.answer} and is {whole}")
        elif client.plan.streams:
            sent = self._http.get(path, params={"stream": "true"}).content.split(b"\n\n")
            uncut = [event + b"\n\n" for event in sent if event and not event.startswith(b":")]
            fault = stream_fault(client.events, uncut, expected)
            if fault is not None:
                getattr(self._findings, fault[0]).append(f"{who}: {fault[1]}")
            if not all(is_beginning(dropped, uncut) for dropped in client.dropped):
                self._findings.different.append(f"{who}: what Redis forgot came again with other tokens")

    def _expected(self, client: HttpClient, ends: list[EndEvent], whole: dict[str, Any]) -> dict[str, Any]:
        """The whole answer that ``generate`` gives, as far as each of its jobs came."""
        ask = client.plan.ask
        answers = [
            self._answer(self._answers[one], end, has_logprobs=one.logprobs is not None)
            for one, end in zip(ask.requests, ends, strict=True)
        ]
        seed = None if ask.request.settings.is_greedy else ask.request.settings.seed
        heading = Heading(
            str(client.name),
            ask.route == "chat",
            whole.get("created", 0),
            keys.DEFAULT_MODEL,
            whole.get("seed") if seed is None else seed,
            [ask.request.prompt],
            get_tokenizer(),
        )
        return completion_object(heading, answers) | {"system_fingerprint": whole.get("system_fingerprint")}

    @staticmethod
    def _answer(tokens: list[TokenEvent], end: EndEvent, *, has_logprobs: bool) -> Answer:
        given = tokens[: end.tokens]
        text = "".join(event.text for event in given) + end.text
        listed = [event.logprobs for event in given if event.logprobs is not None]
        return Answer(
            tuple(event.token_id for event in given), text, end, 0.0, None, tuple(listed) if has_logprobs else None
        )

    def _events(self, job_id: str) -> list[Event]:
        entries = cast(list[RawEntry], self._connection.xrange(keys.token_stream(job_id)))
        return [decode_entry(entry) for entry in entries]
