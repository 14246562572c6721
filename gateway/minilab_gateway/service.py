"""All that the gateway asks of the queue, in threads.

redis-py and RQ block, and a large prompt takes long to take apart: the event loop only waits for them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar

import orjson
import redis
from redis.exceptions import RedisError

from minilab_gateway.api_keys import NO_KEY, ApiKey
from minilab_gateway.chunks import last_number
from minilab_gateway.completion import Completion, Found, find
from minilab_gateway.errors import ApiError
from minilab_gateway.json_bytes import parsed_object
from minilab_gateway.limits import Allowance
from minilab_gateway.notes import Note, RouteName
from minilab_gateway.recent import Recent
from minilab_gateway.settings import GatewaySettings
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import DuplicateJobError, MiniLabError, RequestError, UnknownModelError
from minilab_gen.openai.bodies import AskedRequest, Route
from minilab_gen.openai.vllm_names import VLLM_FORMS
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, all_cards, read_card, read_tokenizer
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.groups import job_ids_of, requests_of
from minilab_gen.protocol.jobs import workers_alive
from minilab_gen.protocol.results import JobResult, fingerprint_of, result
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, draw_seed, enqueue_answers
from minilab_gen.request import FORM_FIELDS
from minilab_gen.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_THREADS: Final = 16
"""Calls that are under way at once, each with a connection: what Redis takes in a few milliseconds."""

_TOKENIZERS: Final = 8
"""Tokenizers that are kept, each some 10 to 100 MB: a gateway serves few models."""

_LARGE_BODY: Final = 65_536
"""Bytes above which a body is worth a thread, which costs a tenth of a millisecond."""

_LOOK_SECONDS: Final = 0.2
"""Between looks for a worker that may come."""

_MOMENT: Final = 0.05
"""Seconds for which a worker that was seen, or a model's card, is taken to be there: a lease lasts longer anyway."""

_NAMES: Final = 100
"""Models of which that is kept."""

_ROOM: Final = 16
"""Levels of JSON, of the 254 that can be written, that are left for answers in which a part of a body is given back."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Wish:
    """A request as it came in over HTTP."""

    route: Route
    name: RouteName
    body: Mapping[str, Any]
    """Without what HTTP alone is about."""
    owner: str
    idempotency_key: str | None
    usage: bool
    digest: str
    """Of the whole body."""
    allowance: Allowance | None = None
    """Of the key that asks; None where nothing limits it."""
    event_ids: bool = True
    """Whether the events of its stream have ids."""
    response: list[Any] | None = None
    """For the note of a response."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been read, and may be submitted."""

    wish: Wish
    asked: Sequence[AskedRequest]
    """One for each prompt, which differ in nothing else."""
    model: AskedModel


class Service:
    """The one connection of a process to Redis, for everything but streams."""

    def __init__(self, connection: redis.Redis, settings: GatewaySettings) -> None:
        self._connection, self._settings = connection, settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self._tokenizers: OrderedDict[str, Tokenizer] = OrderedDict()
        self._loading = Lock()
        self._cards: Recent[ModelCard] = Recent(_MOMENT, _NAMES)
        self._workers: Recent[int] = Recent(_MOMENT, _NAMES)

    def close(self) -> None:
        """Wait for what is under way, cancels above all."""
        self._threads.shutdown()
        self._connection.close()

    async def run(
        self, call: Callable[Parameters, Result], *args: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Call something that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **named))

    async def parsed(self, body: bytes) -> dict[str, Any]:
        """The object in a body, a large one read in a thread. Raises RequestError."""
        return parsed_object(body) if len(body) <= _LARGE_BODY else await self.run(parsed_object, body)

    async def digest(self, body: bytes, content: Mapping[str, Any]) -> str:
        """Of what was read from a body."""
        return digest_of(content) if len(body) <= _LARGE_BODY else await self.run(digest_of, content)

    def ping(self) -> None:
        self._connection.ping()

    def cards(self) -> list[ModelCard]:
        return all_cards(self._connection)

    def model(self, name: object, key: ApiKey = NO_KEY) -> AskedModel:
        """A model by the name in a body. Raises ApiError, UnknownModelError where the key may not ask it, too."""
        if not isinstance(name, str) or not name:
            raise ApiError(400, "a request must name a model; GET /v1/models lists them", param="model")
        plain = keys.without_owner(name)
        try:
            keys.check_model_name(plain)
        except MiniLabError as error:
            raise UnknownModelError(f"no model can have this name: {error}") from error
        card = self._cards.get(plain, lambda: read_card(self._connection, plain))
        if not key.may_ask(card.name):
            raise UnknownModelError(f"no model {card.name} is there for this key")
        return AskedModel(card, self._tokenizer(card))

    def _tokenizer(self, card: ModelCard) -> Tokenizer:
        with self._loading:  # so that many requests at once load it once
            known = self._tokenizers.get(card.tokenizer)
            if known is None:
                known = self._tokenizers[card.tokenizer] = read_tokenizer(self._connection, card)
            self._tokenizers.move_to_end(card.tokenizer)
            while len(self._tokenizers) > _TOKENIZERS:
                self._tokenizers.popitem(last=False)
            return known

    async def completion(self, prepare: Callable[[], Completion | Prepared]) -> Completion:
        """The completion that ``prepare`` finds, or that of the request which it has read, once a worker is there.

        All of it is one call in a thread where nothing is waited for: to change threads takes as long as a question to
        Redis. Raises what ``prepare`` raises, ApiError where no worker comes in time, and what enqueueing raises.
        """
        found = await self.run(self._at_once, prepare)
        if isinstance(found, Prepared):
            await self._wait_for_worker(found.model.card.name)
            found = await self.run(self._submit, found)
        return found

    def _at_once(self, prepare: Callable[[], Completion | Prepared]) -> Completion | Prepared:
        found = prepare()
        if isinstance(found, Prepared) and self._is_served(found.model.card.name):
            return self._submit(found)
        return found

    def _is_served(self, model: str) -> bool:
        return self._workers.get(model, lambda: workers_alive(self._connection, keys.queue_name(model))) > 0

    async def _wait_for_worker(self, model: str) -> None:
        give_up = time.monotonic() + self._settings.queue_wait
        while not await self.run(self._is_served, model):
            left = give_up - time.monotonic()
            if left <= 0:
                raise ApiError(
                    503,
                    f"no worker serves the model {model} now; try again, or start one",
                    code="no_worker",
                    retry_after=_LOOK_SECONDS,
                )
            await asyncio.sleep(min(_LOOK_SECONDS, left))

    def _submit(self, prepared: Prepared) -> Completion:
        """Put the jobs of a request into the queue, or find those that its first try put there."""
        wish, asked, model = prepared.wish, prepared.asked, prepared.model
        settings = self._settings
        name = _name_of(wish)
        calls = None if asked[0].calls is None else asked[0].calls.to_json()
        note = Note(
            route=wish.name,
            owner=wish.owner,
            created=int(time.time()),
            digest=wish.digest,
            usage=wish.usage,
            event_ids=wish.event_ids,
            echo=asked[0].echo,
            new_tokens=asked[0].request.max_new_tokens,
            form=next((field for field in (*VLLM_FORMS, *FORM_FIELDS) if wish.body.get(field) is not None), ""),
            calls=calls,
            response=wish.response,
            prompts=len(asked),
        )
        submission = Submission(
            model=model.card.name,
            job_id=name,
            is_fresh=wish.idempotency_key is None,
            timeout=settings.timeout,
            max_queued=settings.max_queued,
            notes={"gateway": note.to_json()},
        )
        seed = draw_seed()  # for all prompts, as one that is named would be
        requests = [each.request if each.has_seed else each.request.with_seed(seed) for each in asked]
        jobs = [job for request in requests for job in requests_of(request, asked[0].n)]
        job_ids = tuple(job_ids_of(name, len(jobs)))
        if wish.allowance is not None:
            wish.allowance.reserve(job_ids, sum(len(job.prompt) for job in jobs))
        try:
            enqueue_answers(self._connection, jobs, submission)
        except MiniLabError as error:
            if wish.allowance is not None:
                wish.allowance.release()
            if not isinstance(error, DuplicateJobError) or wish.idempotency_key is None:
                raise
            return self._first_try(wish, name)
        prompts = tuple(request.prompt for request in requests)
        return Completion(Found(name, job_ids, model.card.name, prompts, note), model.tokenizer)

    def find_first_try(self, wish: Wish) -> Completion | None:
        """The completion that an earlier request with the same Idempotency-Key has made. Raises ApiError."""
        if wish.idempotency_key is None:
            return None
        name = _name_of(wish)
        found = find(self._connection, name, wish.name, wish.owner)
        return None if found is None else self._checked(found, wish)

    def _first_try(self, wish: Wish, name: str) -> Completion:
        found = find(self._connection, name, wish.name, wish.owner)
        if found is None:
            raise ApiError(409, "this Idempotency-Key was used on another route", code="idempotency_key_in_use")
        return self._checked(found, wish)

    def _checked(self, found: Found, wish: Wish) -> Completion:
        if found.note.digest != wish.digest:
            raise ApiError(409, "this Idempotency-Key came with another body before", code="idempotency_key_in_use")
        return self._completion(found)

    def _completion(self, found: Found) -> Completion:
        return Completion(found, self.model(found.model).tokenizer)

    def find(self, given: str, name: RouteName, owner: str) -> Completion | None:
        """A completion by its id; None where it is unknown or another's."""
        found = find(self._connection, given, name, owner)
        return None if found is None else self._completion(found)

    def results(self, job_ids: Sequence[str]) -> tuple[list[JobResult | None], str | None]:
        """The answers of jobs, and the fingerprint of the model that gave them."""
        return [result(self._connection, each) for each in job_ids], fingerprint_of(self._connection, job_ids[0])

    def lengths(self, completion: Completion) -> list[int]:
        """The number of the last event that a client can have seen of each answer: after the end comes the usage."""
        found = [stream_length(self._connection, each) for each in completion.job_ids]
        return [tokens if end is None else last_number(end, completion) + 1 for tokens, end in found]

    def cancel(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            try:
                cancel(self._connection, job_id)
            except (MiniLabError, RedisError) as error:
                _log.warning("job %s cannot be cancelled: %s", job_id, error, extra={"job_id": job_id})

    def soon(self, call: Callable[Parameters, object], *args: Parameters.args, **named: Parameters.kwargs) -> None:
        """Call something that blocks, beside: nobody waits for it."""
        self._threads.submit(call, *args, **named)

    def cancel_soon(self, job_ids: Sequence[str]) -> None:
        """Cancel them beside, as their client does not wait any more."""
        self._threads.submit(self.cancel, job_ids)


def digest_of(body: Mapping[str, Any]) -> str:
    """Equal bodies have equal digests, in whatever order their fields are. Raises RequestError for too many levels."""
    held: Any = body
    for _ in range(_ROOM):
        held = [held]
    try:
        return hashlib.sha256(orjson.dumps(held, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except orjson.JSONEncodeError as error:
        raise RequestError(f"a body must have fewer levels of objects and lists: {error}") from None


def name_for(owner: str, retry_key: str | None) -> str:
    """A name that nobody has: from the key that makes a retry find it, which each owner has for themselves."""
    if retry_key is None:
        return secrets.token_hex(16)
    words = b"\0".join(word.encode() for word in (owner, retry_key))
    return hashlib.sha256(words).hexdigest()[:32]


def _name_of(wish: Wish) -> str:
    """The id for the job."""
    name = name_for(wish.owner, wish.idempotency_key)
    return name if wish.idempotency_key is not None else name[:24]
