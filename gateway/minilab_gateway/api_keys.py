"""The keys that clients show: a file of names and hashes, and what each key may do.

A key has 256 random bits, so that a plain hash keeps it: none can be found by trying.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minilab_gen.errors import RequestError
from minilab_gen.request import shown

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_OF_NOTHING: Final = hashlib.sha256(b"").digest()
_LIMITS: Final = ("requests-per-minute", "tokens-per-minute", "jobs")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose requests these are, and what they may ask."""

    name: str
    """Empty where no keys are asked for."""
    digest: bytes = b""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    jobs: int | None = None
    """Jobs at once."""
    models: frozenset[str] | None = None
    """None for all."""

    def may_ask(self, model: str) -> bool:
        return self.models is None or model in self.models


NO_KEY: Final = ApiKey("")
"""Whoever asks, where no keys are asked for."""


class ApiKeys:
    """The keys of one file, read again when that is asked for."""

    def __init__(self, file: Path) -> None:
        """Raises RequestError for a file that cannot be read or holds no key."""
        self._file = file
        self._keys = read_keys(file)

    def __len__(self) -> int:
        return len(self._keys)

    def reload(self) -> None:
        """Raises RequestError, and keeps the keys that it had."""
        self._keys = read_keys(self._file)

    def find(self, shown_key: bytes) -> ApiKey | None:
        """The key that was shown; None for one that is not there. The time it takes tells nothing about the keys."""
        digest, found = hashlib.sha256(shown_key).digest(), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def new_key(name: str) -> tuple[str, str]:
    """A new key, and the line of the file that lets it in."""
    if not _NAME.fullmatch(name):
        raise RequestError(f"the name of a key must be 1 to 64 letters, digits, _, . or -, got {shown(name)}")
    key = f"ml-{secrets.token_urlsafe(32)}"
    return key, f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """The keys in a file. Raises RequestError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--api-keys must be a file that can be read, got {file}: {error}") from error
    keys: dict[str, ApiKey] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        key = _key(words, f"{file}, line {number}")
        if key.name in keys or any(other.digest == key.digest for other in keys.values()):
            raise RequestError(f"{file}, line {number}: names and keys must differ, got {key.name} again")
        keys[key.name] = key
    if not keys:
        raise RequestError(f"--api-keys must hold a key, got none in {file}; `minilab-gateway key NAME` makes one")
    return tuple(keys.values())


def _key(words: list[str], where: str) -> ApiKey:
    name, *rest = words
    found = _HASH.fullmatch(rest[0]) if rest else None
    if not _NAME.fullmatch(name) or found is None:
        raise RequestError(f"{where}: a line must be NAME sha256:HASH, as `minilab-gateway key NAME` prints it")
    digest = bytes.fromhex(found[1])
    if digest == _OF_NOTHING:
        raise RequestError(f"{where}: a key must not be empty")
    given = dict(word.partition("=")[::2] for word in rest[1:])
    if unknown := [option for option in given if option not in (*_LIMITS, "models")]:
        raise RequestError(f"{where}: a key may have {', '.join(_LIMITS)} and models, got {shown(unknown[0])}")
    requests, tokens, jobs = (_limit(name, given, where) for name in _LIMITS)
    models = frozenset(filter(None, given["models"].split(","))) if "models" in given else None
    return ApiKey(name, digest, requests, tokens, jobs, models)


def _limit(name: str, given: Mapping[str, str], where: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise RequestError(f"{where}: {name} must be a whole number of at least 1, got {shown(text)}")
    return int(text)
