"""lm-evaluation-harness on small tasks of ours: its numbers are those that transformers computes for the folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from interop.environments import program
from interop.openai_service import OpenAIService
from interop.snippets import snippets, without_installing
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

_ROUNDING: Final = 1e-4
"""For each token: both compute in float32, in another order."""


class Reference:
    """The model of a folder, as transformers computes it."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def ending(self, context: str, ending: str) -> tuple[float, bool, int]:
        """The log-likelihood of an ending, whether it is what is most probable, and its tokens."""
        return self._score(self._ids(context + ending), len(self._ids(context)))

    def text(self, text: str) -> tuple[float, bool, int]:
        """The same of a whole text behind the token that begins one."""
        return self._score([self._tokenizer.bos_token_id, *self._ids(text)], 1)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _score(self, ids: list[int], begin: int) -> tuple[float, bool, int]:
        with torch.no_grad():
            logprobs = self._model(torch.tensor([ids])).logits[0].log_softmax(-1)  # (length, vocabulary)
        before, scored = logprobs[begin - 1 : -1], torch.tensor(ids[begin:])
        total = float(before.double().gather(1, scored[:, None]).sum())
        return total, bool((before.argmax(-1) == scored).all()), len(scored)


def look_with_lm_eval(service: OpenAIService, environments: Path) -> None:
    lm_eval = program("lm-eval", environments, "lm_eval")
    folder = service.folder / "lm-eval"
    folder.mkdir()
    for language, ending in (("yaml", "yaml"), ("json", "jsonl")):
        for name, content in zip(("cities", "novel"), snippets("lm-eval", language), strict=True):
            (folder / f"{name}.{ending}").write_text(content, encoding="utf-8")
    (folder / "minilab_gen").mkdir()
    (folder / "minilab_gen" / "base").symlink_to(BASE_CHECKPOINT)
    (commands,) = snippets("lm-eval", "sh", service.url)
    service.run(["bash", "-ec", without_installing(commands)], folder, PATH=f"{lm_eval.parent}:/usr/bin:/bin")
    _compare(folder / "results")


def _compare(results: Path) -> None:
    """What was found with what is found here."""
    reference = Reference(BASE_CHECKPOINT)
    endings = texts = 0
    for sample in _samples(results, "cities"):
        for asked, ((found, is_greedy),) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            total, expected, tokens = reference.ending(asked["arg_0"], asked["arg_1"])
            assert math.isclose(float(found), total, abs_tol=_ROUNDING * tokens), (asked, found, total)
            assert is_greedy == str(expected), (asked, is_greedy)
            endings += 1
    size, likelihood = 0, 0.0
    for sample in _samples(results, "novel"):
        page = sample["doc"]["page"]
        total, _, tokens = reference.text(page)
        ((found,),) = sample["resps"]
        assert math.isclose(float(found), total, abs_tol=_ROUNDING * tokens), (page, found, total)
        texts, size, likelihood = texts + 1, size + len(page.encode()), likelihood + total
    assert (endings, texts) == (9, 2)
    (report,) = results.glob("*/results_*.json")
    said = json.loads(report.read_text(encoding="utf-8"))["results"]["novel"]["bits_per_byte,none"]
    assert math.isclose(said, -likelihood / size / math.log(2), abs_tol=_ROUNDING), said


def _samples(results: Path, task: str) -> Iterator[dict[str, Any]]:
    (file,) = results.glob(f"*/samples_{task}_*.jsonl")
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())
