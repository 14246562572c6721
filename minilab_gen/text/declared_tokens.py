"""Tokens that a checkpoint folder declares beside its ``tokenizer.json``, read as transformers reads them.

Chat markers above all stand in ``tokenizer_config.json``, in older folders in ``added_tokens.json`` and
``special_tokens_map.json``, and not always in ``tokenizer.json`` as well. It must know neither torch nor Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.request import shown
from minilab_gen.text.tokenizer_class import class_of, roles_of
from minilab_gen.text.tokenizer_config import ADDED_TOKENS, TOKEN_ROLES, TOKENIZER_CONFIG, tokenizer_settings

_LISTS = ("extra_special_tokens", "additional_special_tokens")
"""Special tokens without a role: the present name of the key, and the former one."""


@dataclass(frozen=True, slots=True)
class DeclaredTokens:
    """What the files beside ``tokenizer.json`` say about tokens."""

    file: Path
    """The file that gives ids: that of older folders leaves to ``tokenizer.json`` what both have."""
    by_id: Mapping[int, AddedToken] = field(default_factory=dict)
    named: Mapping[str, AddedToken] = field(default_factory=dict)
    """By role, such as ``eos_token``; they have no ids of their own."""
    extra: tuple[AddedToken, ...] = ()
    """Special tokens without a role, and without ids of their own."""

    def add_to(self, library: Tokenizer) -> int:
        """Add what a tokenizer lacks, in transformers' order: first what has an id, then what has only a role.

        Returns one more than the highest id that a file gives. Raises CheckpointError where an id would be another.
        """
        own = library.get_added_tokens_decoder()
        by_id = dict(self.by_id) if self.file.name == TOKENIZER_CONFIG else {**self.by_id, **own}
        roles = {token.content for token in self.named.values()}
        for token in by_id.values():
            token.special = token.special or token.content in roles
        present = {token.content for token in (*own.values(), *by_id.values())}
        others = [token for token in (*self.named.values(), *self.extra) if token.content not in present]
        library.add_tokens([by_id[token_id] for token_id in sorted(by_id)])
        numbered = int(max(library.get_vocab(with_added_tokens=True).values())) + 1
        library.add_tokens(others)
        for token_id, token in self.by_id.items():
            got = library.token_to_id(token.content)
            if got != token_id and token.content:
                raise CheckpointError(
                    f"{self.file}: the token {shown(token.content)} must have the id {token_id} as declared, but gets "
                    f"{got} with tokenizer.json; correct the file that is wrong"
                )
        return numbered

    def described(self) -> str:
        """The same content as a text, which is equal for equal declarations."""
        with_ids = sorted((token_id, _state(token)) for token_id, token in self.by_id.items())
        return repr((with_ids, [_state(token) for token in (*self.named.values(), *self.extra)]))


def read_declared_tokens(folder: Path) -> DeclaredTokens:
    """What a folder declares. Raises CheckpointError for files that cannot be read so."""
    settings = tokenizer_settings(folder)
    config = {**roles_of(class_of(folder, settings)), **settings}
    if config.get("split_special_tokens"):
        raise CheckpointError(f"{folder / TOKENIZER_CONFIG}: split_special_tokens must be false, got true; remove it")
    file, by_id = _with_ids(folder, config)
    roles = [*TOKEN_ROLES, *(key for key in config if key.endswith("_token") and key not in TOKEN_ROLES)]
    named = {key: config[key] for key in roles if isinstance(config.get(key), str | dict)}
    extra: Any = next((config[key] for key in _LISTS if config.get(key)), [])
    if isinstance(extra, dict):  # tokens with roles that the model alone has
        named, extra = named | extra, []
    special = {key: _token(token, folder, special=True) for key, token in named.items()}
    lone = tuple(_token(token, folder, special=True) for token in _listed(extra, folder))
    known = {token.content for token in (*special.values(), *lone)}
    tokens = {
        token_id: _token(token, file, special=token in known if isinstance(token, str) else None)
        for token_id, token in by_id.items()
    }
    return DeclaredTokens(file, tokens, special, lone)


def _with_ids(folder: Path, config: Mapping[str, Any]) -> tuple[Path, dict[int, Any]]:
    """The file that gives tokens their ids, and these tokens as they stand there."""
    file = folder / TOKENIZER_CONFIG
    if "added_tokens_decoder" in config:
        declared = config["added_tokens_decoder"]
        if not isinstance(declared, dict) or not all(key.isdecimal() for key in declared):
            rule = "added_tokens_decoder must be an object of ids and tokens"
            raise CheckpointError(f"{file}: {rule}, got {shown(declared)}")
        return file, {int(key): token for key, token in declared.items()}
    file = folder / ADDED_TOKENS
    if not file.exists():
        return file, {}
    declared = read_json(file)
    ids = list(declared.values())
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids) or len(set(ids)) < len(ids):
        raise CheckpointError(f"{file} must give each token an id of its own, got {shown(declared)}")
    return file, {token_id: text for text, token_id in declared.items()}


def _token(token: Any, where: Path, *, special: bool | None = None) -> AddedToken:
    """A token as the library has it; ``special`` is what it is by where it stands, and not by itself."""
    if isinstance(token, str):
        return AddedToken(token, special=bool(special), normalized=not special)
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise CheckpointError(f"{where}: a token must be a text or an object with content, got {shown(token)}")
    kept = {key: bool(token[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in token}
    return AddedToken(token["content"], special=bool(token.get("special")) if special is None else special, **kept)


def _listed(tokens: Any, folder: Path) -> Iterable[Any]:
    if not isinstance(tokens, list):
        raise CheckpointError(f"{folder}: {_LISTS[0]} must be a list of tokens, got {shown(tokens)}")
    return tokens


def _state(token: AddedToken) -> tuple[str, bool, bool, bool, bool, bool]:
    return token.content, token.single_word, token.lstrip, token.rstrip, token.normalized, token.special
