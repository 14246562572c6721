"""What clients do in a chaos run: they submit jobs of all kinds, some twice, some that can never run, and cancel some.

A client whose connection breaks tries again.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import redis
from rq import Queue
from rq.exceptions import DuplicateJobError as RqDuplicateJobError
from rq.serializers import JSONSerializer
from support.random_forms import random_form
from support.random_settings import random_settings

from chaos.checkpoint import CONTEXT, VOCABULARY
from minilab_gen.errors import DuplicateJobError, UnknownJobError
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest, SamplingSettings

_POOL: Final = 200
"""Different requests of a run of many seeds, each of which is also generated alone."""

_FORMED: Final = 0.2
"""The share of requests whose answers have a form."""

_RETRY_PAUSE: Final = 0.1  # seconds between two attempts of a client that Redis does not answer

_INVALID: Final[tuple[object, ...]] = (
    {"prompt": []},
    {"prompt": [VOCABULARY]},
    {"prompt": [1] * CONTEXT},
    "text",
    None,
)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job and what its client does with it."""

    job_id: str
    request: GenerationRequest | None
    """None for a job that can never run and is forced into the queue."""
    submission: Submission
    at: float
    """Seconds after the beginning at which it is submitted."""
    cancel_at: float | None
    twice: bool


def request_pool() -> list[GenerationRequest]:
    """The requests that all seeds draw from: short and long, greedy and sampled."""
    dice = random.Random(4)
    return [_random_request(dice) for _ in range(_POOL)]


def _random_request(dice: random.Random) -> GenerationRequest:
    prompt = tuple(dice.randrange(VOCABULARY) for _ in range(dice.choice([1, 3, 10, 40])))
    length = dice.choice([5, 20, 60, 100, 100, 1000])
    if dice.random() < _FORMED:
        plain = SamplingSettings(temperature=dice.choice([0.0, 1.0]), seed=dice.randrange(1000))
        return GenerationRequest(prompt, length, plain, stop_ids=(0,), form=random_form(dice))
    return GenerationRequest(
        prompt,
        length,
        random_settings(dice, VOCABULARY) if dice.random() < 0.7 else SamplingSettings(),
        stop_ids=(dice.randrange(8),),
        stop=dice.choice([(), (), (), ("en",), ("qu", "é")]),
        logprobs=dice.choice([None, None, 0, 3]),
    )


def plan(dice: random.Random, pool: list[GenerationRequest], jobs_wanted: int, seconds: float) -> list[PlannedJob]:
    """The jobs of one seed in the order in which they are submitted: a third at once, the others as time goes by."""
    times = sorted(dice.choice([0.0, dice.uniform(0, seconds), dice.uniform(0, seconds)]) for _ in range(jobs_wanted))
    return [_planned(dice, pool, f"job-{number}", at) for number, at in enumerate(times)]


def _planned(dice: random.Random, pool: list[GenerationRequest], job_id: str, at: float) -> PlannedJob:
    submission = Submission(
        job_id=job_id,
        priority=dice.choice(["normal", "normal", "normal", "high", "low"]),
        timeout=dice.choice([keys.DEFAULT_TIMEOUT] * 15 + [2]),
    )
    request = dice.choice(pool) if dice.random() > 0.05 else None
    cancel_at = at + dice.uniform(0, 4) if dice.random() < 0.15 else None
    return PlannedJob(job_id, request, submission, at, cancel_at, twice=dice.random() < 0.1)


class Clients:
    """Carries a plan out, in threads, as well-behaved clients would."""

    def __init__(self, url: str, planned: list[PlannedJob]) -> None:
        self._connection = connect(url)
        self._planned = planned
        self.acknowledged: dict[str, float] = {}
        """When the id of each job was given to its client, on the clock of ``time.monotonic``."""
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._submit_all, name="submitter"),
            threading.Thread(target=self._cancel_all, name="canceller"),
        ]

    def start(self) -> None:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all is submitted and cancelled. Raises what a client met and does not put up with."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Give up what is not done yet."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._connection.close()

    def submit(self, job: PlannedJob) -> None:
        """Submit until an answer comes."""
        self._persist(lambda: self._submit_once(job))

    def _submit_all(self) -> None:
        for job in self._planned:
            self._wait_until(job.at)
            self.submit(job)
            if job.twice:
                self.submit(job)

    def _cancel_all(self) -> None:
        to_cancel = [(job.cancel_at, job.job_id) for job in self._planned if job.cancel_at is not None]
        for at, job_id in sorted(to_cancel):
            self._wait_until(at)
            while job_id not in self.acknowledged and not self._stopped.wait(_RETRY_PAUSE):
                pass
            self._persist(lambda job_id=job_id: self._cancel_once(job_id))  # type: ignore[misc]

    def _submit_once(self, job: PlannedJob) -> None:
        try:
            if job.request is not None:
                enqueue(self._connection, job.request, job.submission)
            else:
                self._force(job)
        except (DuplicateJobError, RqDuplicateJobError):
            pass  # submitted twice, or its first try had arrived
        self.acknowledged.setdefault(job.job_id, time.monotonic())

    def _force(self, job: PlannedJob) -> None:
        name = keys.queue_name(keys.DEFAULT_MODEL, job.submission.priority)
        queue = Queue(name, connection=self._connection, serializer=JSONSerializer)
        argument = _INVALID[hash(job.at) % len(_INVALID)]
        queue.enqueue_call(keys.TASK, args=(argument,), job_id=job.job_id, unique=True)

    def _cancel_once(self, job_id: str) -> None:
        with contextlib.suppress(UnknownJobError):  # Redis came back without it; the client that submitted it will see
            endings.cancel(self._connection, job_id)

    def _persist(self, act: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            try:
                act()
                return
            except redis.RedisError:
                self._stopped.wait(_RETRY_PAUSE)
            except Exception as error:  # noqa: BLE001 - raised again by join
                self._failure = error
                self._stopped.set()

    def _wait_until(self, at: float) -> None:
        self._stopped.wait(max(0.0, self._began + at - time.monotonic()))
