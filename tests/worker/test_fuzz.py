"""Whatever comes in is understood or refused with an error of ours: users see no traceback, and the worker lives."""

from __future__ import annotations

import contextlib
import json
import secrets
import zlib
from collections.abc import Callable, Sequence
from typing import Any, get_args

import fakeredis
import pytest
import redis
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from minilab_client.cli import main
from minilab_client.exit_codes import ExitCode
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from support.client_program import announce_worker, fake_redis, run, start, submit, write
from support.waiting import wait_until

from minilab_gen.errors import MiniLabError, RequestError, StreamError
from minilab_gen.generate import generate
from minilab_gen.protocol import endings, keys, results
from minilab_gen.protocol.connection import _checked_url
from minilab_gen.protocol.events import EndEvent, JobState, TokenEvent, decode_entry, entry_number
from minilab_gen.protocol.jobs import fetch, queue_of, request_of, view
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import Cursor, tail
from minilab_gen.request import GenerationRequest, ModelLimits

FUZZ = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the example itself cleans up
)
LIMITS = ModelLimits(vocab_size=2048, context_length=64)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2047, 2048, 2**32, 2**63, 2**64, 10**400])
    | st.floats()
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def nearly(good: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The good object with some of its values replaced or left out."""
    return st.fixed_dictionaries({}, optional={name: st.just(value) | json_values for name, value in good.items()})


payloads = json_values | nearly(GenerationRequest((5, 6, 7), 4, stop_ids=(9,)).to_payload())
arguments = st.one_of(
    st.tuples(st.just(keys.TASK) | json_values, st.none() | json_values, st.tuples(payloads), st.just({})),
    st.tuples(st.just(keys.TASK), st.none(), json_values, json_values),
    json_values,
).map(lambda value: json.dumps(value).encode())
deep = st.integers(1, 20_000).map(lambda depth: b"[" * depth + b"]" * depth)
data = st.one_of(arguments, arguments, deep, st.binary(max_size=50))
raw = st.one_of(st.binary(max_size=30), st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")))

RECORD_FIELDS = (
    *("created_at", "origin", "worker_name", "description", "enqueued_at", "started_at", "ended_at", "last_heartbeat"),
    *("timeout", "result_ttl", "failure_ttl", "status", "meta", "ttl", "dependency_ids", "group_id", "webhooks"),
    *("retries_left", "retry_intervals", "repeats_left", "exc_info", "result", "unknown"),
)
"""What RQ keeps of a job beside its data."""

values = raw | st.sampled_from([b"-1", b"0", b"1e9", b"99999999999999999999", b"queued", b"finished", b"{}", b"[]"])
damage = st.dictionaries(st.sampled_from(RECORD_FIELDS), values, max_size=3)
entries = st.lists(
    st.tuples(
        st.integers(1, 4) | st.integers(1, 2**64 - 2),
        st.dictionaries(st.sampled_from([b"id", b"text", b"end", b"tokens", b"prompt_tokens", b"phase"]) | raw, values)
        .filter(bool)
        .map(lambda fields: {**fields}),
    ),
    max_size=4,
)


def put_record(connection: redis.Redis, job_id: str, payload: bytes, fields: dict[str, bytes]) -> None:
    """A record of a waiting job as another program may force it into Redis."""
    good = {"created_at": b"2026-01-01T00:00:00.000000Z", "origin": b"minilab.base", "status": b"queued", "meta": b"{}"}
    record: dict[Any, Any] = {**good, **fields, "data": payload}
    connection.hset(f"rq:job:{job_id}", mapping=record)


def put_entries(connection: redis.Redis, job_id: str, found: Sequence[tuple[int, dict[bytes, bytes]]]) -> None:
    """What of these entries Redis takes."""
    for number, fields in found:
        with contextlib.suppress(redis.ResponseError):
            connection.xadd(keys.token_stream(job_id), fields, id=f"{number}-0")  # type: ignore[arg-type]


# Requests, streams and records


@pytest.mark.slow
@FUZZ
@given(data)
def test_arguments_are_a_request_or_refused(payload: bytes) -> None:
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True) as connection:
        put_record(connection, "a", payload, {})
        job = fetch(connection, "a")

        with contextlib.suppress(RequestError):
            request = request_of(job)
            request.check_fits(LIMITS)
            assert GenerationRequest.from_payload(request.to_payload()) == request


@FUZZ
@given(raw | st.integers().map(lambda number: f"{number}-0".encode()), st.dictionaries(raw, values, max_size=4))
def test_an_entry_is_an_event_or_refused(entry_id: bytes, fields: dict[bytes, bytes]) -> None:
    with contextlib.suppress(StreamError):
        assert decode_entry((entry_id, fields)).number == entry_number(entry_id)


@FUZZ
@given(json_values | st.text(st.sampled_from("aZ9_-\n:*é"), max_size=140), json_values)
def test_a_cursor_is_made_of_an_id_and_a_number_or_refused(job_id: Any, after: Any) -> None:
    with contextlib.suppress(RequestError):
        assert Cursor(job_id, after).position == {f"minilab:tokens:{job_id}": f"{after}-0"}


@FUZZ
@given(entries)
def test_a_stream_is_read_to_its_end_or_refused(found: list[tuple[int, dict[bytes, bytes]]]) -> None:
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True) as connection:
        put_entries(connection, "a", found)

        with contextlib.suppress(MiniLabError):  # one without an end is refused, too, since there is no such job
            *_, end = tail(connection, "a")
            assert isinstance(end, EndEvent)


@FUZZ
@given(data, damage, entries)
def test_a_damaged_record_is_shown_or_refused(
    payload: bytes, fields: dict[str, bytes], found: list[tuple[int, dict[bytes, bytes]]]
) -> None:
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True) as connection:
        put_record(connection, "a", payload, fields)
        put_entries(connection, "a", found)

        for read in (view, results.result, endings.cancel):
            with contextlib.suppress(MiniLabError):
                read(connection, "a")


@FUZZ
@given(
    st.text(max_size=30)
    | st.tuples(st.sampled_from(["redis://", "rediss://", "unix://", "http://"]), st.text(max_size=20)).map("".join)
    | st.text(max_size=20).map(lambda hosts: f"sentinel://{hosts}/service"),
    st.text(st.sampled_from("s3@/?#%:&="), max_size=8).map(lambda text: f"s3cr3t{text}"),
)
def test_an_address_is_taken_or_refused_without_its_password(address: str, password: str) -> None:
    scheme, separator, rest = address.partition("://")
    given_url = f"{scheme}{separator}user:{password}@{rest}" if separator else address
    try:
        _checked_url(given_url)
    except RequestError as error:
        assert "s3cr3t" not in str(error)  # noqa: PT017 - it may also be taken


# The worker


@pytest.fixture
def worker(start_worker: Callable[..., Worker]) -> Worker:
    return start_worker()


def test_no_job_ends_the_worker(server: redis.Redis, served: ServedModel, worker: Worker) -> None:
    queue = queue_of(server, keys.queue_name(keys.DEFAULT_MODEL))

    @settings(FUZZ, max_examples=60, phases=[Phase.generate])  # to shrink means to wait for many failures
    @given(
        st.lists(st.tuples(data, st.booleans(), damage, entries), min_size=1, max_size=8),
        st.lists(st.binary(max_size=12), max_size=2),
    )
    def is_survived(forced: list[tuple[bytes, bool, dict[str, bytes], Any]], strange_ids: list[bytes]) -> None:
        job_ids = [secrets.token_hex(8) for _ in forced]
        for job_id, (payload, deflated, fields, found) in zip(job_ids, forced, strict=True):
            put_record(server, job_id, zlib.compress(payload) if deflated else payload, fields)
            put_entries(server, job_id, found)
        server.rpush(queue.key, *job_ids, *strange_ids)

        wait_until(lambda: not server.exists(queue.key, queue.intermediate_queue_key, queue.started_job_registry.key))

        for job_id in job_ids:
            with contextlib.suppress(MiniLabError):  # a stream that is damaged in a job that had ended stays as it is
                assert stream_length(server, job_id)[1] is not None or fetch(server, job_id).get_status() != "queued"

    is_survived()

    job_id = enqueue(server, GenerationRequest((5, 6)), Submission())
    wait_until(lambda: stream_length(server, job_id)[1])
    tokens = [event.token_id for event in tail(server, job_id) if isinstance(event, TokenEvent)]
    assert tokens == [step.token_id for step in generate(served.model, (5, 6), 62)]


def test_what_clients_may_write_may_be_of_any_kind(server: redis.Redis, worker: Worker) -> None:
    queue = queue_of(server, keys.queue_name(keys.DEFAULT_MODEL))
    kinds: list[Callable[[str], Any]] = [
        lambda key: server.set(key, "text", ex=60),
        lambda key: server.rpush(key, "item"),
        lambda key: server.hset(key, "name", "value"),
        lambda key: server.zadd(key, {"member": 1}),
    ]
    key_kinds = {"record": "rq:job:{}".format, "stream": keys.token_stream, "flag": keys.cancel_flag}
    for number, make in enumerate(kinds):
        for kind_of_key, key_of in key_kinds.items():
            job_id = f"{kind_of_key}{number}"
            if kind_of_key != "record":
                put_record(server, job_id, json.dumps([keys.TASK, None, [{"prompt": [5]}], {}]).encode(), {})
            make(key_of(job_id))
            server.rpush(queue.key, job_id)

    job_id = enqueue(server, GenerationRequest((5, 6)), Submission())

    wait_until(lambda: stream_length(server, job_id)[1])
    assert [event.number for event in tail(server, job_id)] == list(range(1, 64))


# The command line

OPTIONS = (
    *("--ids", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--stop-id", "--job-id", "--json"),
    *("--timeout", "--ttl", "--priority", "--model", "--max-queued", "--redis-url", "--from", "--state", "--limit"),
    *("--format", "--help", "--version", "--", "-", "-h"),
)
"""All but those that wait for a worker."""

COMMANDS = ("submit", "tail", "status", "result", "cancel", "jobs", "models", "workers")
JOBS = ("ended", "failed", "damaged")
words = st.one_of(
    st.sampled_from(OPTIONS),
    st.sampled_from([*JOBS, "waiting", "running", "unknown", "base", "high", *get_args(JobState)]),
    st.sampled_from(["1", "0", "-1", "5,6", "5,,6", "0.8", "nan", "1e999", "9" * 30, "2147483648", ""]),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
    st.text(st.characters(categories=["Cs", "Cc", "Lo", "Nd"], exclude_characters="\0"), max_size=4),
)
lines = st.tuples(st.sampled_from(COMMANDS) | words, st.lists(words, max_size=6)).map(lambda line: [line[0], *line[1]])


@FUZZ
@given(line=lines, stdin=st.binary(max_size=40))
def test_a_command_line_works_or_is_refused_in_one_line(
    line: list[str], stdin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if line[0] == "tail":  # of these it would wait for the end
        line = [word for word in line if word not in ("waiting", "running")]
    with monkeypatch.context() as patch:
        connection = fake_redis(patch)
        announce_worker(connection)
        run(connection, "ended", ["Phi", "leas"])
        run(connection, "failed", ["Phi"], "error", error="it broke")
        submit(connection, "waiting")
        submit(connection, "running")
        start(connection, "running")
        write(connection, "running", "Phi")
        put_record(connection, "damaged", b"\0", {"status": b"finished"})

        result = CliRunner().invoke(main, line, input=stdin, prog_name="minilab-client")

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in set(ExitCode)
    assert "Traceback" not in result.output
    if result.exit_code == ExitCode.REFUSED and "Usage:" not in result.stderr:
        assert result.stderr.startswith(("error: ", '{"error": '))
        assert result.stderr.count("\n") == 1
