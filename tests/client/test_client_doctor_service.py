"""What ``minilab-client doctor`` finds of queues, model cards and workers. No server is needed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import redis
from rq.job import Job
from support.client_program import announce_worker, client, diagnosis, finding, start, submit

from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, publish_card
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

REPORT = WorkerStats("base", 64, 3, 0, 0.0, "exact: 9 rows of logits equal bit for bit", "f" * 16, 0.0, 0.0)
CARD = ModelCard("base", 64, 2048, (0,), "f" * 16, "exact: 9 rows", "t" * 32)

START_OTHER = "minilab-worker --model ./other --name other, where ./other is its folder or GGUF file"


def serve(connection: redis.Redis, name: str = "minilab-a", **report: Any) -> None:
    """A worker that is alive and has reported."""
    announce_worker(connection, name)
    publish_stats(connection, name, replace(REPORT, reported_at=time.time(), **report))


def test_jobs_that_no_worker_serves_are_reported(fake: redis.Redis) -> None:
    serve(fake)
    submit(fake, "x")
    enqueue(fake, GenerationRequest((5,)), Submission("other", "y", "high"))

    code, found = diagnosis()

    assert code == 0
    served, unserved = found["queue"]
    assert (served["level"], unserved["level"]) == ("ok", "warn")
    assert served["found"].startswith("minilab.base: 1 wait")
    assert unserved["found"].startswith("minilab.other.high: 1 wait")
    assert unserved["remedy"] == f"start a worker: {START_OTHER}"


def test_what_to_start_is_a_worker_of_the_model_that_is_asked(fake: redis.Redis) -> None:
    enqueue(fake, GenerationRequest((5,)), Submission("other", "x"))
    start(fake, "x")
    fake.zadd("rq:wip:minilab.other", {"x:1": time.time() + 60})
    fetch(fake, "x").save()
    fake.hset(Job.key_for("x"), "worker_name", "minilab-gone")
    enqueue(fake, GenerationRequest((5,)), Submission("other", "y"))

    found = diagnosis()[1]

    assert found["workers"][0]["remedy"] == f"start one: {START_OTHER}"
    assert found["stuck"][0]["remedy"] == f"start a worker, which goes on with them: {START_OTHER}"
    assert found["model"][0]["remedy"] == f"start one of its workers: {START_OTHER}"


def test_a_job_made_for_another_vocabulary_is_told_with_what_to_cancel(fake: redis.Redis) -> None:
    serve(fake)
    submit(fake, "x")
    assert len(diagnosis()[1]["queue"]) == 1

    enqueue(fake, GenerationRequest((5, 2048)), Submission(job_id="y"))

    _, seen = diagnosis()[1]["queue"]
    assert (seen["level"], seen["remedy"]) == ("warn", "cancel what would fail: minilab-client cancel y")
    assert seen["found"] == "minilab.base: 1 made for another model, with ids beyond the 2048 of this one"
    assert client(*seen["remedy"].partition("minilab-client ")[2].split()).exit_code == 0
    assert len(diagnosis()[1]["queue"]) == 1


def test_a_model_whose_card_has_expired_is_told(fake: redis.Redis) -> None:
    enqueue(fake, GenerationRequest((5,)), Submission("other", "x"))

    found = finding("model")

    assert (found["level"], "its card has expired" in found["found"]) == ("warn", True)


def test_a_card_that_cannot_be_read_is_a_failure(fake: redis.Redis) -> None:
    serve(fake)
    fake.set(keys.model_card("base"), "{}")

    code, found = diagnosis()

    assert (code, found["model"][0]["level"]) == (1, "fail")


def test_workers_of_one_model_with_unequal_fingerprints_are_a_failure(fake: redis.Redis) -> None:
    publish_card(fake, CARD, get_tokenizer().to_json())
    serve(fake)
    serve(fake, "minilab-b")
    assert finding("model")["level"] == "ok"

    serve(fake, "minilab-c", fingerprint="e" * 16)

    code, found = diagnosis()
    assert (code, found["model"][0]["level"]) == (1, "fail")
    assert f"{'e' * 16}: minilab-c; {'f' * 16}: minilab-a, minilab-b" in found["model"][0]["found"]


def test_a_dead_workers_fingerprint_does_not_matter(fake: redis.Redis) -> None:
    publish_card(fake, CARD, get_tokenizer().to_json())
    serve(fake)
    serve(fake, "minilab-b", fingerprint="e" * 16)
    fake.delete(keys.worker_lease("minilab-b"))

    code, found = diagnosis()

    assert (code, found["model"][0]["level"]) == (0, "ok")
    assert "minilab-b" in found["workers"][1]["found"]


def test_a_card_of_another_checkpoint_than_the_worker_serves_is_told(fake: redis.Redis) -> None:
    publish_card(fake, CARD, get_tokenizer().to_json())
    serve(fake, fingerprint="e" * 16)

    found = finding("model")

    assert (found["level"], "e" * 16 in found["found"]) == ("warn", True)


def test_a_worker_that_is_not_exact_is_told(fake: redis.Redis) -> None:
    serve(fake, exactness="not exact: 3 of 9 rows of logits differ, by at most 1.0e-05")

    found = finding("exactness")

    assert (found["level"], "minilab-a is not exact" in found["found"]) == ("warn", True)


def test_slots_of_all_workers_are_counted(fake: redis.Redis) -> None:
    serve(fake)
    serve(fake, "minilab-b", used=4)

    assert finding("workers")["found"] == "2 alive, 7 of 128 slots in use"


def test_jobs_of_a_worker_that_is_gone_are_told(fake: redis.Redis) -> None:
    for job_id in ("x", "y"):
        submit(fake, job_id)
        start(fake, job_id)
        job = fetch(fake, job_id)
        fake.hset(Job.key_for(job_id), "worker_name", "minilab-gone" if job_id == "x" else "minilab-a")
        fake.zadd(f"rq:wip:{job.origin}", {f"{job_id}:1": time.time() + 100})
    fake.rpush("rq:queue:minilab.base:intermediate", "z")
    assert finding("stuck")["found"] == "minilab.base: 3 begun by workers that are gone"

    serve(fake)

    found = finding("stuck")
    assert found["found"] == "minilab.base: 1 begun by workers that are gone"
    assert found["remedy"].startswith("none")
