"""What the worker's log says of jobs and how: a line for an event, the job's id beside it, and no word of an answer."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from chaos.fleet import FAST_KERNELS, LEASE
from chaos.server import BINARY
from rq import Repeat, Retry
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from minilab_gen.log_lines import JsonLines, TextLines
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.jobs import fetch, queue_of
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import publish, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

needs_redis = pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")

LONG = GenerationRequest((5, 6, 7), 40)


@pytest.fixture
def burst(server: redis.Redis, small_checkpoint: Path) -> Any:  # the connection sets MINILAB_REDIS_URL
    """Run ``minilab-worker`` over what waits; gives the lines of its log."""

    def burst(*options: str, exit_code: int = 0) -> list[str]:
        command = [sys.executable, "-m", "minilab_worker.cli", "--model", str(small_checkpoint), "--burst"]
        ended = subprocess.run(
            [*command, "--name", "base", "--threads", "1", "--max-batch", "4", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=LIMIT,
            check=False,
        )
        assert ended.returncode == exit_code, ended.stderr
        assert ended.stdout == "", "nothing but data belongs on stdout, and a worker has none"
        return ended.stderr.splitlines()

    return burst


def of_job(lines: list[str], job_id: str) -> list[dict[str, Any]]:
    """The lines about a job, all of which must be JSON."""
    return [line for line in map(json.loads, lines) if line.get("job_id") == job_id]


def test_a_quiet_worker_tells_its_start_and_its_end_and_no_job(server: redis.Redis, burst: Any) -> None:
    for number in range(5):
        enqueue(server, GenerationRequest((number,), 3), Submission(job_id=f"job-number-{number}"))
    enqueue(server, GenerationRequest((1,) * 1000), Submission(job_id="job-number-6"))  # which fails

    said = "\n".join(burst())

    assert "job-number" not in said
    assert " serves minilab.base.high, minilab.base, minilab.base.low, 4 slots" in said
    assert " exits: 6 jobs ended, 0 requeued" in said


def test_a_verbose_worker_tells_of_each_job_when_it_starts_and_how_it_ends(server: redis.Redis, burst: Any) -> None:
    enqueue(server, LONG, Submission(job_id="whole"))
    enqueue(server, LONG, Submission(job_id="half"))
    publish(server, [("half", TokenEvent(n, 100, "")) for n in range(1, 11)], running_ttl=600)
    enqueue(server, LONG, Submission(job_id="flagged"))
    server.set(keys.cancel_flag("flagged"), 1, ex=600)
    enqueue(server, GenerationRequest((99_999,)), Submission(job_id="wrong"))

    lines = burst("--verbose", "--log-format", "json")

    started, ended = of_job(lines, "whole")
    assert (started["message"], started["prompt_tokens"]) == ("whole: started, 3 prompt tokens", 3)
    assert ended["message"].startswith("whole: ended, length, 40 tokens in ")
    assert (ended["reason"], ended["tokens"], ended["level"]) == ("length", 40, "debug")
    assert ended["tokens_per_second"] == pytest.approx(40 / ended["seconds"], rel=0.2)
    resumed, _ = of_job(lines, "half")
    assert (resumed["message"], resumed["tokens"]) == ("half: resumed at token 10", 10)
    (cancelled,) = of_job(lines, "flagged")
    assert (cancelled["reason"], cancelled["tokens"]) == ("cancelled", 0)
    (refused,) = of_job(lines, "wrong")
    assert refused["message"] == "wrong: refused, the reason stands in its stream"


def test_no_log_shows_what_was_asked_or_answered(server: redis.Redis, burst: Any) -> None:
    """RQ would: of a job that is repeated it logs the call with its arguments."""
    prompt = tuple(range(1741, 1761))
    queue = queue_of(server, keys.queue_name(keys.DEFAULT_MODEL))
    payload = GenerationRequest(prompt, 30).to_payload()
    queue.enqueue(keys.TASK, payload, job_id="again", repeat=Repeat(times=1))
    queue.enqueue(keys.TASK, payload | {"prompt": "Phileas Fogg"}, job_id="wrong", retry=Retry(max=1))
    queue.enqueue(keys.TASK, payload, job_id="after", depends_on=["again"])

    said = "\n".join(burst("--verbose"))

    answer = result(server, "after")
    assert answer is not None
    assert "after: ended, length, 30 tokens" in said
    longest = max(re.findall(r"\w+", answer.text), key=len)
    assert len(longest) > 3
    assert longest not in said
    assert ("Phileas" in said, "1745, 1746" in said, str(answer.ids[:2])[1:-1] in said) == (False, False, False)


def test_answers_are_shown_to_whoever_asks_for_them(server: redis.Redis, burst: Any) -> None:
    job_id = enqueue(server, LONG, Submission())

    lines = burst("--log-text", "--log-format", "json")

    (answered,) = of_job(lines, job_id)
    text = "".join(event.text for event in read_stream(server, job_id))
    assert (answered["text"], answered["level"]) == (text, "info")


def test_the_environment_can_ask_for_json(server: redis.Redis, burst: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILAB_LOG_FORMAT", "json")

    lines = [json.loads(line) for line in burst()]

    assert {line["level"] for line in lines} == {"info"}
    assert {"time", "level", "logger", "message"} <= lines[0].keys()


def test_an_error_that_ends_the_program_is_a_line_of_json_too(burst: Any) -> None:
    *_, line = burst("--model", "/nowhere", "--log-format", "json", exit_code=2)

    told = json.loads(line)
    assert told["level"] == "critical"
    assert "/nowhere" in told["message"]


def test_a_worker_without_its_extra_says_in_its_last_line_what_to_install() -> None:
    run = "import sys; sys.modules['safetensors'] = None; from minilab_worker.cli import main; main()"

    ended = subprocess.run([sys.executable, "-c", run], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    assert ended.returncode == 1
    assert (
        b"safetensors is missing; in a clone of the repository: pip install -c constraints.txt '.[serve]'"
        in ended.stderr.splitlines()[-1]
    )


@needs_redis
def test_a_takeover_names_the_job_and_the_worker_whose_lease_expired(own_service: OwnService) -> None:
    first = own_service.fleet.start_and_wait("--log-format", "json")
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 5)
    expired = fetch(own_service.connection, job_id).worker_name
    first.kill()

    second = own_service.fleet.start_and_wait("--log-format", "json", kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")
    wait_until(lambda: "ended, length" in second.said, LEASE + LIMIT)

    taken, resumed, _ended = of_job(second.said.splitlines(), job_id)
    assert (taken["worker"], taken["level"]) == (expired, "warning")
    assert resumed["tokens"] >= 5


def test_every_line_about_a_job_gives_its_id_as_a_field_too() -> None:
    calls = [
        call
        for file in (Path(__file__).parent.parent.parent / "worker" / "minilab_worker").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_log.")
    ]
    about_jobs = [call for call in calls if re.search(r"\b(job_id|job\.id)\b", ast.unparse(call))]

    assert len(about_jobs) > 10
    assert [ast.unparse(call) for call in about_jobs if "extra" not in {word.arg for word in call.keywords}] == []


def record(message: str, *arguments: object, **named: Any) -> logging.LogRecord:
    return logging.getLogger("another").makeRecord(
        "another", logging.WARNING, "file.py", 1, message, arguments, **({"exc_info": None} | named)
    )


def test_a_message_cannot_forge_a_second_line() -> None:
    forged = record("job %s", "a\n2026-11-29 INFO all is well\x1b[2J\u2028\x85")

    assert len(TextLines().format(forged).splitlines()) == 1
    assert "\x1b" not in TextLines().format(forged)
    assert len(JsonLines().format(forged).splitlines()) == 1
    assert json.loads(JsonLines().format(forged))["message"] == forged.getMessage()


def test_an_exception_is_one_line_of_json_with_its_traceback() -> None:
    error = ValueError("two\nlines")

    (line,) = JsonLines().format(record("failed", exc_info=(type(error), error, None))).splitlines()

    assert json.loads(line)["exception"] == "ValueError: two\nlines"


def test_what_a_line_gives_beside_its_message_is_a_field_of_its_own() -> None:
    given = record("done", extra={"job_id": "a", "tokens": 3, "folder": Path("base")})

    fields = json.loads(JsonLines().format(given))

    assert fields.keys() == {"time", "level", "logger", "message", "job_id", "tokens", "folder"}
    assert (fields["job_id"], fields["tokens"], fields["folder"]) == ("a", 3, "base")
