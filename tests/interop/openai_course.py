"""What programs that speak OpenAI's API must print, run as the pages in docs/http say."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path
from typing import Final

from support.own_service import LIMIT
from support.waiting import wait_until

from interop.environments import node_folder, program
from interop.evaluation import look_with_lm_eval
from interop.openai_service import OpenAIService
from interop.snippets import snippets, without_installing
from minilab_gen.protocol.streams import end_of

Look = Callable[[OpenAIService, Path], None]

_FOREIGN: Final = Path(__file__).parent / "foreign"
_FOGG: Final = "Phileas Fogg"
_CITY: Final = "Name a city."


def look_with_litellm(service: OpenAIService, environments: Path) -> None:
    python = program("litellm", environments, "python")
    (snippet,) = snippets("litellm", "python", service.url)
    lines = service.run([python, "-c", snippet]).splitlines()
    texts = [literal_eval(line) for line in lines if line.startswith(("'", '"'))]
    assert texts == [service.completion(_FOGG)] * 2 + [service.chat(_CITY)] * 2, lines
    assert lines[-1] == "404", lines
    (config,) = snippets("litellm", "yaml", service.url)
    more = (_FOREIGN / "litellm_more.py", f"{service.locked_url}/v1", service.key, config)
    routed = service.run([python, *more]).splitlines()
    assert [literal_eval(line) for line in routed] == [service.completion(_FOGG), service.chat(_CITY)], routed


def look_with_langchain(service: OpenAIService, environments: Path) -> None:
    python = program("langchain-openai", environments, "python")
    (snippet,) = snippets("langchain", "python", service.url)
    *texts, listed, city = service.run([python, "-c", snippet]).splitlines()
    completion, chat = service.completion(_FOGG), service.chat(_CITY)
    expected = [completion, completion, [completion, service.completion("Passepartout")]]
    expected += [chat, chat, [chat, service.chat("Name a river.")]]
    assert [literal_eval(text) for text in texts] == expected, texts
    assert int(listed) == 20, listed
    assert city.startswith("City(name='"), city


def look_with_llm(service: OpenAIService, environments: Path) -> None:
    folder = service.folder / "llm"
    folder.mkdir()
    (models,) = snippets("llm", "yaml", service.url)
    (folder / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    (commands,) = snippets("llm", "sh")
    path = f"{program('llm', environments).parent}:/usr/bin:/bin"
    printed = service.run(["bash", "-ec", without_installing(commands)], PATH=path, LLM_USER_PATH=str(folder))
    texts = [service.completion(_FOGG)] * 2 + [service.chat(_CITY)] * 2
    assert printed == "".join(f"{text}\n" for text in texts), printed


def look_with_openai_js(service: OpenAIService, environments: Path) -> None:
    folder = node_folder("openai-js", environments)
    plain, errors, resume = (_node(service, folder, each) for each in snippets("javascript", "js", service.url))
    text = service.completion(_FOGG)
    assert [json.loads(line) for line in plain] == [text, service.chat(_CITY), text], plain
    assert errors == ["404 model_not_found model invalid_request_error true"], errors
    assert resume == ["true true"], resume
    own = (_FOREIGN / "openai_js.mjs").read_text(encoding="utf-8")
    *aborted, refused = _node(service, folder, own, service.url, service.locked_url)
    assert refused == "AuthenticationError 401 invalid_api_key authentication_error", refused
    for name in aborted:
        job_id = name.removeprefix("cmpl-")
        wait_until(lambda job_id=job_id: end_of(service.connection, job_id), LIMIT)  # type: ignore[misc]
        end = end_of(service.connection, job_id)
        assert end is not None
        assert end.reason == "cancelled", end


def _node(service: OpenAIService, folder: Path, snippet: str, *arguments: str) -> list[str]:
    """The lines that a program prints; it must lie where its package is."""
    file = folder / "snippet.mjs"
    file.write_text(snippet, encoding="utf-8")
    return service.run(["node", file, *arguments]).splitlines()


LOOKS: Final[dict[str, Look]] = {
    "litellm": look_with_litellm,
    "langchain-openai": look_with_langchain,
    "llm": look_with_llm,
    "openai-js": look_with_openai_js,
    "lm-eval": look_with_lm_eval,
}
