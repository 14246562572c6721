"""Waiting for the jobs of a completion: as a stream of server-sent events, or until the whole answer is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from minilab_gateway.chunks import failure
from minilab_gateway.completion import Completion
from minilab_gateway.errors import ApiError, api_error
from minilab_gateway.metrics import Metrics
from minilab_gateway.service import Service
from minilab_gateway.stream_hub import StreamHub
from minilab_gen.openai.objects import Heading, completion_object
from minilab_gen.protocol.events import Event, TokenEvent
from minilab_gen.protocol.results import Answer, JobResult

_log = logging.getLogger(__name__)


class Writer(Protocol):
    """Makes the events of a stream of those of its jobs."""

    def first(self) -> bytes:
        """What is known before any token."""

    def of_events(self, index: int, events: Iterable[Event]) -> bytes:
        """What is written about events of one job. Raises ApiError where that failed and ends the stream."""

    def last(self) -> bytes:
        """What follows when all jobs have ended."""

    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that failed."""


@dataclass(slots=True)
class Delivery:
    """A completion on its way to one client."""

    completion: Completion
    stays: bool
    """Whether its jobs go on without the client."""
    is_over: bool = False


class Answers:
    """Reads for clients, and cancels for those who go away."""

    def __init__(self, service: Service, hub: StreamHub, metrics: Metrics, is_closing: Callable[[], bool]) -> None:
        """``is_closing`` tells whether this process ends: then clients may go on at another one."""
        self._service, self._hub, self._metrics, self._is_closing = service, hub, metrics, is_closing

    async def stream(self, delivery: Delivery, writer: Writer, began: float | None) -> AsyncGenerator[bytes, None]:
        """What is written, for events that are there together in one piece. :meth:`end` must follow."""
        completion = delivery.completion
        try:
            if first := writer.first():
                yield first
            async with aclosing(self._merged(completion.job_ids)) as merged:
                async for index, events in merged:
                    began = self._count(events, began)
                    if piece := writer.of_events(index, events):
                        yield piece
            delivery.is_over = True
            if last := writer.last():
                yield last
        except Exception as error:  # noqa: BLE001 - the 200 has been sent: only the stream can tell
            delivery.is_over = True
            if not delivery.stays and len(completion.job_ids) > 1:
                self._service.cancel_soon(completion.job_ids)  # the other answers, which nobody will read
            yield writer.failed(self._told(error))

    def end(self, delivery: Delivery) -> None:
        """Whoever waited for it has it, or does not wait any more: then its jobs are cancelled, unless they stay."""
        if delivery.is_over or delivery.stays or self._is_closing():
            return
        self._metrics.cancelled.inc()
        _log.info("completion %s is cancelled: its client went away", delivery.completion.public_id)
        self._service.cancel_soon(delivery.completion.job_ids)

    async def whole(self, completion: Completion, began: float) -> dict[str, Any]:
        """The answer, once all of its jobs have ended. Raises ApiError for one that failed."""
        await self.read(completion, began)
        found, fingerprint = await self._service.run(self._service.results, completion.job_ids)
        ended = [result for result in found if result is not None]
        for result in ended:
            if result.end.reason == "error":
                raise failure(result.end, completion.note)
        if len(ended) < len(found):
            raise ApiError(500, "the end of an answer is missing", code="stream_damaged")
        note = completion.note
        heading = Heading(
            completion.public_id,
            note.route == "chat",
            note.created,
            completion.model,
            ended[0].seed,
            completion.prompts,
            completion.tokenizer,
            note.echo,
            completion.calls,
        )
        return completion_object(heading, [_answer(result, note.created, fingerprint) for result in ended])

    async def read(self, completion: Completion, began: float) -> None:
        """Read for a client until all jobs have ended."""
        async with aclosing(self._merged(completion.job_ids)) as merged:
            first: float | None = began
            async for _, events in merged:
                first = self._count(events, first)

    async def ended(self, job_ids: Sequence[str]) -> None:
        """Wait until all jobs have ended, for nobody who reads what they give."""
        async with aclosing(self._merged(job_ids)) as merged:
            async for _ in merged:
                pass

    async def whole_or_gone(
        self,
        delivery: Delivery,
        whole: Coroutine[Any, Any, dict[str, Any]],
        gone: Callable[[], Coroutine[Any, Any, None]],
    ) -> dict[str, Any] | None:
        """The answer that ``whole`` gives; None where the client goes away before. :meth:`end` must follow."""
        answering = asyncio.create_task(whole)
        leaving = asyncio.create_task(gone())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            delivery.is_over = answering.done()
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    def _count(self, events: Sequence[Event], began: float | None) -> float | None:
        """Count tokens; ``began`` is when the request came, until its first token has been seen."""
        tokens = sum(isinstance(event, TokenEvent) for event in events)
        self._metrics.tokens.inc(tokens)
        if tokens and began is not None:
            self._metrics.first_token.observe(time.perf_counter() - began)
        return None if tokens else began

    async def _merged(self, job_ids: Sequence[str]) -> AsyncGenerator[tuple[int, list[Event]], None]:
        """The events of several jobs as they come, each with the index of its job."""
        if len(job_ids) == 1:
            async with aclosing(self._hub.follow(job_ids[0])) as events:
                async for found in events:
                    yield 0, found
            return
        ready: asyncio.Queue[tuple[int, list[Event] | BaseException | None]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pass_on(index, job_id, ready)) for index, job_id in enumerate(job_ids)]
        try:
            running = len(tasks)
            while running:
                index, found_or_end = await ready.get()
                if isinstance(found_or_end, BaseException):
                    raise found_or_end
                if found_or_end is None:
                    running -= 1
                else:
                    yield index, found_or_end
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, index: int, job_id: str, ready: asyncio.Queue[Any]) -> None:
        try:
            async with aclosing(self._hub.follow(job_id)) as events:
                async for found in events:
                    ready.put_nowait((index, found))
            ready.put_nowait((index, None))
        except Exception as error:  # noqa: BLE001 - whoever takes from the queue raises it
            ready.put_nowait((index, error))

    @staticmethod
    def _told(error: Exception) -> ApiError:
        known = api_error(error)
        if known is None and isinstance(error, ConnectionError):
            known = ApiError(503, f"{error}; go on at another one behind the last event's id", code="shutting_down")
        if known is None:
            _log.exception("a stream failed")
            known = ApiError(500, "the gateway failed; its log says why", code="internal")
        return known


def _answer(given: JobResult, recorded_at: float, fingerprint: str | None) -> Answer:
    return Answer(given.ids, given.text, given.end, recorded_at, fingerprint, given.logprobs, given.prompt_logprobs)
