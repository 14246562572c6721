"""The message of a refusal. It must not hold any test."""

from __future__ import annotations

from typing import Any

import pytest

from minilab_gen.errors import RequestError


def refusal(make: Any, *arguments: Any, **named: Any) -> str:
    """The message with which something is refused."""
    with pytest.raises(RequestError) as caught:
        make(*arguments, **named)
    return str(caught.value)
