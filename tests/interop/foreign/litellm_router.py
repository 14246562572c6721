"""Run by the Python that has LiteLLM: what each model of a proxy's config answers. Argument: the config."""

import asyncio
import sys

import yaml
from litellm import Router

router = Router(model_list=yaml.safe_load(sys.argv[1])["model_list"])
text = asyncio.run(router.atext_completion(model="base", prompt="Phileas Fogg", max_tokens=20, temperature=0))
print(repr(text.choices[0].text))
chat = router.completion(
    model="SmolLM2", messages=[{"role": "user", "content": "Name a city."}], max_tokens=20, temperature=0
)
print(repr(chat.choices[0].message.content))
