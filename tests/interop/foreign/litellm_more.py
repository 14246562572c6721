"""Run by the Python that has LiteLLM: which of its exceptions our errors become, and that it comes again after 429.

Then what each model of a proxy's config answers. Arguments: the address of a gateway with keys, a key with a limit of
requests, and the config.
"""

import asyncio
import sys
from typing import Any

import litellm
import yaml

base, key, config = sys.argv[1:]
asked: dict[str, Any] = {
    "model": "openai/SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "Name a city."}],
    "max_tokens": 1,
    "api_base": base,
    "api_key": key,
    "max_retries": 0,
}


def raised(**fields: Any) -> Exception | None:
    """What a request raises."""
    try:
        litellm.completion(**{**asked, **fields})
    except Exception as error:  # noqa: BLE001 - whoever calls looks at its class
        return error
    return None


litellm.suppress_debug_info = True
assert isinstance(raised(model="openai/nobody"), litellm.NotFoundError)
assert isinstance(raised(api_key="another"), litellm.AuthenticationError)
refused = raised(temperature=-1)
assert isinstance(refused, litellm.BadRequestError), refused
assert "temperature must be" in str(refused), refused

limited = next(filter(None, (raised() for _ in range(100))))
assert isinstance(limited, litellm.RateLimitError), limited
assert limited.status_code == 429
assert raised(max_retries=None, num_retries=3) is None

router = litellm.Router(model_list=yaml.safe_load(config)["model_list"])
text = asyncio.run(router.atext_completion(model="base", prompt="Phileas Fogg", max_tokens=20, temperature=0))
print(repr(text.choices[0].text))
chat = router.completion(model="SmolLM2", messages=asked["messages"], max_tokens=20, temperature=0)
print(repr(chat.choices[0].message.content))
