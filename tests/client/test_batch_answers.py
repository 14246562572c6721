"""``minilab-client batch`` with a real worker: every line gets its answer or its reason, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from rq.job import Job
from support.batch_files import (
    answers_to,
    custom_ids,
    good_lines,
    openai,
    own,
    records,
    write_lines,
)
from support.batch_runs import answer_earlier, batch
from support.client_program import client
from support.references import reference_ids
from support.waiting import wait_until

from minilab_gen.asked_model import AskedModel
from minilab_gen.protocol import keys


def model_of(served: ServedModel) -> AskedModel:
    """The model of the tests' worker as a client sees it."""
    return AskedModel(served.card, served.tokenizer)


def test_every_line_gets_the_tokens_that_generate_gives(
    file: Path, out: Path, errors: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    texts = ("Phileas Fogg", "Le", "à bord du Nautilus,")
    write_lines(
        file,
        *(own(f"own-{n}", texts[n % 3], temperature=n % 4 / 2, max_new_tokens=1 + n // 2) for n in range(40)),
        *(openai(f"openai-{n}", texts[n % 3], top_p=0.9, seed=n, max_tokens=20 - n) for n in range(20)),
    )

    result = batch(file, out)

    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    lines = good_lines(file, model_of(served))
    assert len(lines) == 60
    assert all(ids == reference_ids(served, request) for request, ids in answers_to(lines, out))
    assert not errors.exists()
    assert "60 answered; " in result.stderr


def test_an_answer_in_our_form_says_all_about_its_job(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    (line,) = good_lines(write_lines(file, own("a", temperature=1, max_new_tokens=5)), model_of(served))

    batch(file, out)

    ids = reference_ids(served, line.request)
    (record,) = records(out)
    assert record == {
        "custom_id": "a",
        "job_id": line.job_id(0),
        "ids": ids,
        "seed": line.seed,
        "end": "length",
        "tokens": 5,
        "prompt_tokens": 2,
        "text": served.tokenizer.decode(ids),
        "model": "base",
        "fingerprint": served.card.fingerprint,
    }


def test_an_answer_in_openais_form_has_its_fields_and_the_seed(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    (line,) = good_lines(write_lines(file, openai("a", max_tokens=5)), model_of(served))

    batch(file, out)

    ids = reference_ids(served, line.request)
    (record,) = records(out)
    body = record["response"].pop("body")
    assert abs(body.pop("created") - out.stat().st_mtime) < 60
    assert record == {
        "id": f"batch_req_{line.digest}",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": line.job_id(0)},
        "error": None,
    }
    assert body == {
        "id": f"cmpl-{line.digest}",
        "object": "text_completion",
        "model": "base",
        "system_fingerprint": served.card.fingerprint,
        "choices": [
            {
                "index": 0,
                "text": served.tokenizer.decode(ids),
                "finish_reason": "length",
                "logprobs": None,
                "token_ids": ids,
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
        "seed": line.seed,
    }


def test_lines_end_at_their_stop_texts_and_the_others_go_on(
    file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    start_worker()
    plain = [own(f"own-{n}", seed=n, temperature=1, max_new_tokens=40) for n in range(6)]
    plain += [openai(f"openai-{n}", seed=n, max_tokens=40) for n in range(6)]
    lines = good_lines(write_lines(file, *plain), model_of(served))
    texts = [served.tokenizer.decode(reference_ids(served, line.request)) for line in lines]
    stops = [text[20 + n : 23 + n] if n % 3 else None for n, text in enumerate(texts)]
    for line, stop in zip(plain, stops, strict=True):
        line.get("body", line)["stop"] = stop

    batch(write_lines(file, *plain), out)

    answers = {record["custom_id"]: record for record in records(out)}
    for line, text, stop in zip(plain, texts, stops, strict=True):
        answer = answers[line["custom_id"]]
        shown = text if stop is None else text[: text.index(stop)]
        if "body" not in line:
            end = "length" if stop is None else "stop"
            assert (answer["text"], answer["end"], answer.get("stop_text")) == (shown, end, stop)
            assert len(answer["ids"]) == answer["tokens"]
            continue
        body = answer["response"]["body"]
        (choice,) = body["choices"]
        reason = "length" if stop is None else "stop"
        assert (choice["text"], choice["finish_reason"], choice.get("stop_reason")) == (shown, reason, stop)
        assert len(choice["token_ids"]) == body["usage"]["completion_tokens"]
        assert (body["usage"]["completion_tokens"] < 40) == (stop is not None)


def test_bad_lines_cost_the_good_ones_nothing(
    file: Path, out: Path, errors: Path, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    write_lines(file, "{", own("a"), own("b", top_k=0), "", own("c"), own("a"), b"\xff")

    result = batch(file, out)

    assert result.exit_code == 1
    assert sorted(custom_ids(out)) == ["a", "c"]
    assert [(record["line"], record["custom_id"]) for record in records(errors)] == [
        (1, None),
        (3, "b"),
        (6, "a"),
        (7, None),
    ]
    assert all(record["error"]["code"] == "refused" for record in records(errors))
    assert "2 answered, 4 not: see out.errors.jsonl; " in result.stderr


def test_a_second_run_submits_nothing(
    server: redis.Redis, file: Path, out: Path, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    write_lines(file, *(own(f"{n}", temperature=0.8) for n in range(10)))
    batch(file, out)
    first = out.read_bytes()
    server.flushdb()

    result = batch(file, out)

    assert result.exit_code == 0
    assert out.read_bytes() == first
    assert server.keys("rq:job:*") == []
    assert "10 answered (10 earlier); 0 tokens in " in result.stderr


def test_a_line_that_changed_is_done_again_and_no_other(
    file: Path, out: Path, tmp_path: Path, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    write_lines(file, own("a"), own("b"))
    batch(file, out)
    write_lines(file, own("a"), own("b", max_new_tokens=3))

    batch(file, out)

    assert worker.done == 3
    assert custom_ids(out) == ["a", "b"]
    assert records(out)[1]["tokens"] == 3
    assert custom_ids(tmp_path / "out.replaced.jsonl") == ["b"]


def test_standard_input_is_read_where_a_dash_stands(out: Path, start_worker: Callable[..., Worker]) -> None:
    start_worker()

    result = client("batch", "-", "--output", str(out), stdin='{"custom_id": "a", "ids": [5, 6]}\n')

    assert (result.exit_code, custom_ids(out)) == (0, ["a"])


def test_the_answer_of_an_earlier_model_of_the_name_does_not_count(
    server: redis.Redis, file: Path, out: Path, start_worker: Callable[..., Worker], served: ServedModel
) -> None:
    (line,) = good_lines(write_lines(file, own("a")), model_of(served))
    old = answer_earlier(server, line)
    server.hset(Job.key_for(old), keys.FINGERPRINT_FIELD, "an earlier model")
    worker = start_worker()
    wait_until(lambda: server.exists(keys.model_card(keys.DEFAULT_MODEL)))

    assert batch(file, out).exit_code == 0

    assert worker.done == 1
    assert records(out)[0]["job_id"] == line.job_id(1)
