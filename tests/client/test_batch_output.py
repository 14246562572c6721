"""The files that a batch writes: whole lines, mended after a kill, one run at a time, nothing of others destroyed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from minilab_client.batch import own_form
from minilab_client.batch.files import ErrorFile
from minilab_client.batch.output_file import OutputFile
from support.batch_files import asked_model, custom_ids, good_lines, openai, own, records, write_lines

from minilab_gen.batch import openai_form
from minilab_gen.batch.line import Line
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer

GIVEN = Answer((5, 6), "né\u2028e\x85", EndEvent("length", 2, 3), 1.5, "model-1")


@pytest.fixture
def lines(tmp_path: Path) -> list[Line]:
    """Three lines in our form and one in OpenAI's."""
    return good_lines(write_lines(tmp_path / "in.jsonl", own("a"), own("b"), own("c"), openai("d")))


def record_of(line: Line) -> dict[str, Any]:
    """What is written about a line."""
    answer = own_form.answer if line.form == "minilab" else openai_form.answer
    return answer([(line, line.job_id(0), GIVEN)], asked_model())


def write(out: Path, *lines: Line) -> None:
    """Answers to lines, as one run writes them."""
    with OutputFile(out) as output:
        for line in lines:
            output.write(line, record_of(line))


def refusal(out: Path) -> str:
    with pytest.raises(click.ClickException) as caught:
        OutputFile(out)
    return caught.value.message


def test_what_is_written_is_known_again(out: Path, lines: list[Line]) -> None:
    a, b, c, d = lines
    write(out, a, d)

    with OutputFile(out) as output:
        assert [output.holds(line) for line in (a, b, c, d)] == [True, False, False, True]
        assert output.fingerprints == {"model-1": 2}


def test_an_answer_is_one_line_for_every_kind_of_reader(out: Path, lines: list[Line]) -> None:
    write(out, *lines)

    content = out.read_text(encoding="utf-8")
    assert len(content.splitlines()) == content.count("\n") == 4
    assert records(out)[0]["text"] == GIVEN.text
    assert "né" in content


@pytest.mark.parametrize("form", [0, 3])
def test_a_torn_last_line_is_removed_wherever_it_was_torn(
    out: Path, lines: list[Line], form: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(out, lines[1], lines[2])
    whole = out.read_bytes()
    added = json.dumps(record_of(lines[form])).encode()

    for length in range(1, len(added)):
        out.write_bytes(whole + added[:length])
        with OutputFile(out) as output:
            assert not output.holds(lines[form])
        assert out.read_bytes() == whole
        assert "line 3" in capsys.readouterr().err


def test_zeros_that_a_power_cut_left_are_removed(out: Path, lines: list[Line]) -> None:
    write(out, lines[0])
    whole = out.read_bytes()

    for torn in (b"\0" * 40, b'{"custom_id": "b", "jo\0\0\0'):
        out.write_bytes(whole + torn)
        write(out)
        assert out.read_bytes() == whole


def test_a_last_line_that_only_lacks_its_end_is_kept(out: Path, lines: list[Line]) -> None:
    write(out, lines[0])
    out.write_bytes(out.read_bytes().removesuffix(b"\n"))

    write(out, lines[1])

    assert custom_ids(out) == ["a", "b"]


def test_an_answer_to_a_changed_request_takes_the_place_of_the_old_one(
    tmp_path: Path, out: Path, lines: list[Line], capsys: pytest.CaptureFixture[str]
) -> None:
    write(out, *lines)
    (changed,) = good_lines(write_lines(tmp_path / "in.jsonl", own("b", seed=3)))

    write(out, changed)

    assert custom_ids(out) == ["a", "c", "d", "b"]
    assert [record["job_id"] for record in records(tmp_path / "out.replaced.jsonl")] == [lines[1].job_id(0)]
    assert "1 line of it answers a request that has changed since" in capsys.readouterr().err
    with OutputFile(out) as output:
        assert output.holds(changed)
        assert not output.holds(lines[1])


def test_what_a_killed_run_has_not_moved_yet_the_next_one_moves(
    tmp_path: Path, out: Path, lines: list[Line], capsys: pytest.CaptureFixture[str]
) -> None:
    (changed,) = good_lines(write_lines(tmp_path / "in.jsonl", own("b", seed=3)))
    write(out, *lines)
    out.write_bytes(out.read_bytes() + json.dumps(record_of(changed)).encode() + b"\n")

    replaced = tmp_path / "out.replaced.jsonl"
    replaced.write_bytes(b'{"torn when that run was killed')

    write(out)

    assert custom_ids(out) == ["a", "c", "d", "b"]
    assert [line[:10] for line in replaced.read_text(encoding="utf-8").splitlines()] == ['{"torn whe', '{"custom_i']


def test_a_second_run_is_kept_out_and_told_why(tmp_path: Path, out: Path, lines: list[Line]) -> None:
    with OutputFile(out) as output:
        assert "another minilab-client writes" in refusal(out)
        output.write(lines[0], record_of(lines[0]))
        (changed,) = good_lines(write_lines(tmp_path / "in.jsonl", own("a", seed=3)))
        output.write(changed, record_of(changed))
    with OutputFile(out):  # which is another file since
        assert "another minilab-client writes" in refusal(out)
    write(out)


@pytest.mark.parametrize(
    "content",
    [
        "my notes",
        "my notes\n",
        '{"custom_id": "a", "prompt": "b"}',
        '{"custom_id": "a", "job_id": "x", "fingerprint": null}\n',
        '{"custom_id": "a", "response": null, "error": {}}\n',
    ],
)
def test_a_file_that_holds_something_else_is_left_as_it_is(out: Path, content: str) -> None:
    out.write_text(content, encoding="utf-8")

    assert "line 1 of" in refusal(out)
    assert "choose another --output" in refusal(out)
    assert out.read_text(encoding="utf-8") == content


def test_an_output_that_cannot_be_read_again_is_refused() -> None:
    assert refusal(Path(os.devnull)) == f"--output must be a file that can be read again, got {os.devnull}"


def test_a_link_to_the_output_stays_one(tmp_path: Path, out: Path, lines: list[Line]) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(out)
    write(link, *lines)
    (changed,) = good_lines(write_lines(tmp_path / "in.jsonl", own("b", seed=3)))

    write(link, changed)

    assert link.is_symlink()
    assert custom_ids(out) == ["a", "c", "d", "b"]


def test_errors_of_an_earlier_run_are_dropped_and_without_any_the_file_goes(tmp_path: Path) -> None:
    file = tmp_path / "errors.jsonl"
    with ErrorFile(file) as errors:
        errors.write(3, None, "refused", "a line must be JSON")
        errors.write(4, "a", "timeout", "the job ran out of time", "x")
    assert [(record["line"], record["error"]["code"]) for record in records(file)] == [(3, "refused"), (4, "timeout")]

    with ErrorFile(file) as errors:
        errors.write(4, "a", "timeout", "the job ran out of time", "x")
    assert len(records(file)) == 1

    with ErrorFile(file):
        assert records(file) == []
    assert not file.exists()


@pytest.mark.parametrize("content", ["my notes", '{"custom_id": "a"}\n'])
def test_errors_do_not_go_into_a_file_that_holds_something_else(tmp_path: Path, content: str) -> None:
    file = tmp_path / "errors.jsonl"
    file.write_text(content, encoding="utf-8")

    with pytest.raises(click.ClickException, match="choose another --errors"):
        ErrorFile(file)
    assert file.read_text(encoding="utf-8") == content


def test_a_torn_line_of_errors_is_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "errors.jsonl"
    file.write_text('{"li', encoding="utf-8")

    with ErrorFile(file) as errors:
        errors.write(3, None, "refused", "a line must be JSON")

    assert len(records(file)) == 1
