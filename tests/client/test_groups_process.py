"""``submit --n --follow`` as a process of its own, whose worker is killed or which is interrupted itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from support.client_process import Program
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol.groups import Group, requests_of
from minilab_gen.text.tokenizer import get_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]

GROUP = Group("x", 4)
FIRST = replace(LONG, settings=replace(LONG.settings, temperature=0.9, seed=7), stop_ids=(0,))
REQUESTS = requests_of(FIRST, GROUP.n)
ASKED = (
    *("submit", "--ids", "5,6,7", "--max-new-tokens", "100", "--temperature", "0.9", "--seed", "7"),
    *("--n", "4", "--job-id", "x", "--follow"),
)


def submitted(service: OwnService) -> None:
    """Wait until the group is there, and until its last answer has some tokens; the third ends after three."""
    wait_until(lambda: service.connection.exists("rq:job:x-3"), LIMIT)
    service.wait_for_token("x-3", 20)


def texts(service: OwnService) -> list[str]:
    """What the plain loop answers with each seed, without a worker."""
    answers = [service.answer(request) for request in REQUESTS]
    return [get_tokenizer().decode([token for token in answer if token != 0]) for answer in answers]


def test_the_answers_are_the_same_though_their_worker_is_killed(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait()
    with Program(own_service.server.url, *ASKED) as reader:
        submitted(own_service)

        worker.kill()
        seen = [own_service.tokens(job_id) for job_id in GROUP.job_ids]
        own_service.fleet.start(kernels=FAST_KERNELS)
        printed = reader.output.read()
        code, said = reader.ended()

    expected = texts(own_service)
    assert (code, "Traceback" in said) == (0, False)
    assert len(set(expected)) == 4
    assert printed == "\n".join(f"==> x-{index} <==\n{text}\n" for index, text in enumerate(expected))
    assert seen.pop(2) == 3
    assert all(10 < count < 100 for count in seen), "it was killed in the middle of the others"
    for job_id, request in zip(GROUP.job_ids, REQUESTS, strict=True):
        own_service.assert_answered(job_id, request)
    own_service.assert_nothing_is_left()


def test_ctrl_c_tells_how_to_read_all_of_it_again(own_service: OwnService) -> None:
    own_service.fleet.start_and_wait()
    with Program(own_service.server.url, *ASKED, "--json") as reader:
        events = [json.loads(reader.output.readline()) for _ in range(6)]

        reader.interrupt()
        events += [json.loads(line) for line in reader.output]
        code, said = reader.ended()

    assert code == 130
    assert [event["event"] for event in events[:2]] == ["submitted", "token"]
    assert all(event["job_id"] == f"x-{event['index']}" for event in events[1:])
    assert said.splitlines()[-1] == "the jobs go on; read again with: minilab-client tail x --json"
    with Program(own_service.server.url, "tail", "x") as reader:
        printed = reader.output.read()
        assert reader.ended() == (0, "")
    assert printed == "\n".join(f"==> x-{index} <==\n{text}\n" for index, text in enumerate(texts(own_service)))


def test_ctrl_c_between_two_texts_tells_how_to_read_on(own_service: OwnService) -> None:
    own_service.fleet.start_and_wait()
    with Program(own_service.server.url, *ASKED) as reader:
        assert reader.output.readline() == "==> x-0 <==\n"
        own_service.wait_for_token("x-0", 20)

        reader.interrupt()
        code, said = reader.ended()

    assert code == 130
    assert re.fullmatch(
        r"the jobs go on; read on with: minilab-client tail x-0 --from \d+; all answers: minilab-client tail x",
        said.splitlines()[-1],
    )
