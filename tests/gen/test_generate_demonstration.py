"""``python -m minilab_gen.generate``: five strategies of the base model, then what its cache saves."""

from __future__ import annotations

import pytest

from minilab_gen import generate as module

pytestmark = pytest.mark.slow


def test_the_demonstration_shows_five_strategies_and_that_the_cache_changes_no_bit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module.demonstrate()

    *answers, cache = capsys.readouterr().out.split("--- ")[1:]
    assert [answer.splitlines()[0] for answer in answers] == [
        "greedy", "T=0.8", "T=0.8 top-k 20", "T=0.8 top-p 0.9", "T=1.5",
    ]  # fmt: skip
    texts = [answer.partition("\n")[2] for answer in answers]
    assert {text[:12] for text in texts} == {"Phileas Fogg"}
    assert len(set(texts)) > 1
    lines = cache.splitlines()
    assert lines[0].startswith("cache: 126 greedy tokens after 2")
    assert lines[1:3] == ["same tokens: True", "largest logit gap: 0.0"]
    without, with_cache = (int(line.split()[-2]) for line in lines[3:5])
    assert without > 10 * with_cache
    assert lines[5].endswith(f" and saves {without - with_cache} projections")
