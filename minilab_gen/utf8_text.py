"""Bytes as text: UTF-8, the same way everywhere."""

from __future__ import annotations

import codecs
from typing import Final

from minilab_gen.errors import RequestError

_OTHER_MARKS: Final = {  # UTF-32's first, since one of them begins with one of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def without_mark(content: bytes, source: str) -> bytes:
    """The bytes without the byte-order mark that some editors put first; ``source`` is what has them, for people.

    Raises RequestError for the mark of another encoding.
    """
    for mark, encoding in _OTHER_MARKS.items():
        if content.startswith(mark):
            convert = f"convert it with: iconv -f {encoding} -t UTF-8"
            raise RequestError(f"{source} must be UTF-8, got the byte-order mark of {encoding}; {convert}")
    return content.removeprefix(codecs.BOM_UTF8)


def decoded(content: bytes, source: str) -> str:
    """The text in bytes, without a byte-order mark. Raises RequestError for what is not UTF-8."""
    bare = without_mark(content, source)
    try:
        return bare.decode()
    except UnicodeDecodeError as error:
        position = error.start + len(content) - len(bare)
        raise RequestError(f"{source} must be UTF-8, got another byte at position {position}") from error
