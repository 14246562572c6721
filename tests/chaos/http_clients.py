"""Clients of gateways: they send a request, read on at another gateway where a stream breaks, and try again.

All that they were sent is kept, byte for byte, and compared at the end.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2 as httpx
import redis
from minilab_gateway.completion import PREFIXES

from chaos.gateways import PING
from chaos.http_load import URLS, PlannedAsk
from minilab_gen.protocol import keys
from minilab_gen.protocol.groups import job_ids_of
from minilab_gen.protocol.streams import stream_length

_RETRY_PAUSE: Final = 0.1  # seconds until a client whose connection broke comes back

_SILENCE: Final = 6 * PING
"""Seconds after which a stream without a comment is taken for broken."""

_PATIENCE: Final = 15.0
"""Seconds for which a whole answer is waited for before it is asked for again."""

_LONGEST_PAUSE: Final = 2.0
"""Seconds: what Retry-After says at most here."""

_CANCEL_LIMIT: Final = 5.0
"""Seconds in which a gateway notices that its client is gone, on a loaded machine."""

_ELSEWHERE: Final = ("shutting_down", "redis_unavailable", "redis_refuses")
"""Codes of errors in a stream after which it goes on at another gateway."""

DONE: Final = b"data: [DONE]\n\n"


def id_of(event: bytes) -> str | None:
    """The id of a server-sent event."""
    head, _, _ = event.partition(b"\n")
    return head.removeprefix(b"id: ").decode() if head.startswith(b"id: ") else None


def data_of(event: bytes) -> Any:
    """What stands in an event's data."""
    _, _, data = event.partition(b"data: ")
    return json.loads(data)


class HttpClient:
    """One client and its request."""

    def __init__(
        self, plan: PlannedAsk, http: httpx.Client, addresses: Callable[[], list[str]], dice: random.Random
    ) -> None:
        self.plan = plan
        self.name: str | None = None
        """The id of the completion, as a gateway told it."""
        self.events: list[bytes] = []
        """All events of the stream, comments left out."""
        self.dropped: list[list[bytes]] = []
        """Events of completions that Redis then forgot."""
        self.answer: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        """What a gateway said about a job that failed."""
        self.failure: str | None = None
        self.has_ended = False
        self.resumes = self.retries = 0
        self.forgotten: list[str] = []
        """What a gateway said when it did not know what had been seen before: only a killed Redis forgets."""
        self.stopped_at: dict[str, int] = {}
        """Where nothing broke: the tokens that each job had when it was asked to stop, as its client was gone."""
        self._http, self._addresses, self._dice = http, addresses, dice
        self._asked = 0
        self._leaves_after, self._cancels_after = plan.leaves_after, plan.cancels_after
        self._stays_away = 0.0  # seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"client {plan.number}")

    def start(self, began: float, watch: Callable[[], redis.Redis] | None = None) -> None:
        """Begin at the planned time. ``watch`` is given where nothing breaks: the cancel of its job is then timed."""
        self._began, self._watch = began, watch
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Stop, and wait until it has."""
        self.stop()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def job_ids(self) -> list[str]:
        """Those of its completion, once it knows it."""
        if self.name is None:
            return []
        return job_ids_of(self.name.removeprefix(PREFIXES[self.plan.ask.route]), self.plan.ask.n)

    def _run(self) -> None:
        self._stopped.wait(max(0.0, self._began + self.plan.at - time.monotonic()))
        try:
            self._insist()
            if self._watch is not None:
                with self._watch() as connection:
                    self._watch_cancel(connection)
        except Exception as error:  # noqa: BLE001 - the audit tells it
            self.failure = repr(error)

    def _insist(self) -> None:
        while not (self.has_ended or self._stopped.is_set() or self.failure):
            try:
                self._ask()
            except httpx.ConnectError:
                self._asked -= 1  # nothing was sent
                self._stopped.wait(_RETRY_PAUSE)
            except httpx.TransportError:
                self._stopped.wait(_RETRY_PAUSE)
            if not self.plan.has_key and self._asked:
                return  # it has gone away, or its connection broke: it does not come back
            self._stopped.wait(self._stays_away)
            self._stays_away = 0.0

    @property
    def _url(self) -> str:
        return self._dice.choice(self._addresses()) + URLS[self.plan.ask.route]

    @property
    def _last_id(self) -> str | None:
        return next((found for event in reversed(self.events) if (found := id_of(event)) is not None), None)

    def _ask(self) -> None:
        self._asked += 1
        if not self.plan.streams:
            with self._post(_PATIENCE) as response:
                self._take_whole(response)
            return
        last = self._last_id
        with self._post(_SILENCE) if last is None else self._go_on(last) as response:
            if self._is_good(response):
                self._read(response)

    @contextmanager
    def _post(self, silence: float) -> Iterator[httpx.Response]:
        self.events.clear()  # there was no id behind which it could go on
        self.retries += self._asked > 1
        headers = {"Idempotency-Key": f"key-{self.plan.number}"} if self.plan.has_key else {}
        timeout = httpx.Timeout(_SILENCE, read=silence)
        with self._http.stream("POST", self._url, json=self.plan.body, headers=headers, timeout=timeout) as response:
            yield response

    @contextmanager
    def _go_on(self, last: str) -> Iterator[httpx.Response]:
        self.resumes += 1
        params, headers = {"stream": "true"}, {}
        if self._dice.random() < 0.5:
            params["starting_after"] = last
        else:
            headers["Last-Event-ID"] = last
        url = f"{self._url}/{self.name}"
        with self._http.stream("GET", url, params=params, headers=headers, timeout=_SILENCE) as response:
            yield response

    def _take_whole(self, response: httpx.Response) -> None:
        response.read()
        if self._is_good(response):
            self.answer = response.json()
            self.name, self.has_ended = str(response.json()["id"]), True

    def _is_good(self, response: httpx.Response) -> bool:
        """Whether it answers; else what a client does about it."""
        if response.status_code == 200:
            return True
        response.read()
        error = response.json()["error"]
        if response.status_code in (429, 503):
            after = response.headers.get("retry-after", "")
            if not after.isdigit() or int(after) < 1:
                self.failure = f"{response.status_code} with Retry-After {after!r}"
            else:
                self._asked -= not self.plan.has_key  # it was refused, so that it may try again
                self._stopped.wait(min(int(after), _LONGEST_PAUSE))
        else:
            self._take_error(error)
        return False

    def _take_error(self, error: dict[str, Any]) -> None:
        code = error["code"]
        if code == "job_failed":
            self.error, self.has_ended = error, True
        elif code == "completion_not_found":
            self.forgotten.append(error["message"])
            self.dropped.append(list(self.events))
            self.events.clear()
        elif error["param"] == "starting_after" and "by now" in error["message"]:
            self.forgotten.append(error["message"])
        elif code not in _ELSEWHERE:
            self.failure = f"a gateway said {error}"
        self._stopped.wait(_RETRY_PAUSE)

    def _read(self, response: httpx.Response) -> None:
        """The events of a stream until it ends or breaks, the client leaves it, or the run is over."""
        rest = b""
        seen = len(self.events)
        if self._leaves(0):
            return
        for piece in response.iter_raw():
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                if block.startswith(b":"):
                    continue
                self._take(block + b"\n\n")
                if self.has_ended or self.failure:
                    return
            if len(self.events) > seen and self._leaves(len(self.events)):
                return
            if self._stopped.is_set():
                return

    def _take(self, event: bytes) -> None:
        if event == DONE:
            self.events.append(event)
            self.has_ended = True
            return
        data = data_of(event)
        if "error" in data:
            self._take_error(data["error"])
            return
        self.events.append(event)
        if self.name not in (None, data["id"]):
            self.failure = f"{self.name} became {data['id']}"
        self.name = data["id"]
        if self._cancels_after is not None and len(self.events) > self._cancels_after:
            self._cancel()

    def _cancel(self) -> None:
        try:
            status = self._http.post(f"{self._url}/{self.name}/cancel", timeout=_SILENCE).status_code
        except httpx.TransportError:
            return  # with the next event it tries again
        if status in (202, 404):
            self._cancels_after = None

    def _leaves(self, events: int) -> bool:
        if self._leaves_after is None or events < self._leaves_after:
            return False
        self._leaves_after, self._stays_away = None, self._dice.uniform(0, 1.5)
        return True

    def _watch_cancel(self, connection: redis.Redis) -> None:
        """Wait until the jobs of a client that has gone away are asked to stop, and note where they run on."""
        give_up = time.monotonic() + _CANCEL_LIMIT
        for job_id in self.job_ids:
            while not connection.exists(keys.cancel_flag(job_id)) and stream_length(connection, job_id)[1] is None:
                if time.monotonic() > give_up:
                    self.failure = f"nobody asks {job_id} to stop, whose client is gone"
                    return
                time.sleep(0.01)
            self.stopped_at[job_id] = stream_length(connection, job_id)[0]
