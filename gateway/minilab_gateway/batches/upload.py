"""A file that comes as multipart/form-data: taken apart as it comes, and in Redis part by part, never whole in here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers

from minilab_gateway.batches.file_store import (
    FILE_SECONDS,
    LONGEST_SECONDS,
    PART_BYTES,
    SHORTEST_SECONDS,
    FileStore,
    StoredFile,
    new_file_id,
)
from minilab_gateway.errors import RETRY_SECONDS, ApiError
from minilab_gateway.service import Service
from minilab_gen.request import shown

AROUND_A_FILE: Final = 64 * 1024
"""Bytes of a body beside those of its file."""

_FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_LONGEST_FIELD: Final = 1024
_LONGEST_HEADER: Final = 32 * 1024
"""Bytes of a header of a part, which holds the name of the file."""

_LONGEST_NAME: Final = 255
"""Characters of a file's name: what file systems take."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_COUNTS_SECONDS: Final = 1200
"""For which an upload counts whose gateway was killed: longer than any upload takes."""

_PARAM: Final = "file"


def plain_name(given: str) -> str:
    """The name of a file as it is shown: the last part of a path, of either kind, without control characters."""
    name = _CONTROL.sub("", re.split(r"[/\\]", given)[-1]).strip()[:_LONGEST_NAME]
    return "file" if name in ("", ".", "..") else name


class _Form:
    """What has come of a form so far."""

    def __init__(self, content_type: str, max_file: int) -> None:
        """Raises ApiError for a body of another type."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ApiError(400, "a file must come as multipart/form-data, with a boundary", param=_PARAM)
        self.fields: dict[str, bytes] = {}
        self.filename: str | None = None
        self.content = bytearray()
        """Of the file, what nobody has taken yet."""
        self.size = 0
        self.is_whole = False
        self._max_file = max_file
        self._name: str | None = None
        self._header, self._value = b"", b""
        callbacks: Any = {
            "on_part_begin": self._begin,
            "on_header_field": self._add_to_header,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks, max_header_size=_LONGEST_HEADER)
        except FormParserError as error:
            raise _no_form(error) from error

    def write(self, data: bytes) -> None:
        """Take some more of the body. Raises ApiError."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _no_form(error) from error

    def finish(self) -> None:
        """Raises ApiError where the body ended too early, or the file is missing."""
        if not self.is_whole:
            raise ApiError(400, "the form must have an end, got a part of one", param=_PARAM)
        if self.filename is None:
            raise ApiError(400, "the form must have a file, got none", param=_PARAM)
        self.check_purpose()

    def check_purpose(self) -> None:
        if self.fields.get("purpose") != b"batch":
            came = _text(self.fields.get("purpose"))
            raise ApiError(400, f"purpose must be batch, got {shown(came)}", param="purpose")

    @property
    def seconds(self) -> int:
        """That the file is to be kept. Raises ApiError."""
        anchor, given = (self.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
        if anchor is None and given is None:
            return FILE_SECONDS
        if anchor != b"created_at":
            rule = "expires_after[anchor] must be created_at"
            raise ApiError(400, f"{rule}, got {shown(_text(anchor))}", param="expires_after")
        return checked_seconds(int(given) if given is not None and re.fullmatch(rb"[0-9]{1,9}", given) else given)

    def _begin(self) -> None:
        self._name, self._header, self._value = None, b"", b""
        self._disposition: dict[bytes, bytes] = {}

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = parse_options_header(self._value)[1]
        self._header, self._value = b"", b""

    def _end_headers(self) -> None:
        name = _text(self._disposition.get(b"name")) or ""
        if name not in (*_FIELDS, "file"):
            raise ApiError(400, f"a form may have file, {', '.join(_FIELDS)}, got {shown(name)}")
        if name in self.fields or (name == "file" and self.filename is not None):
            raise ApiError(400, f"a form may have {name} once, got it twice", param=name)
        self._name = name
        if name == "file":
            if "purpose" in self.fields:
                self.check_purpose()  # before the file has come
            self.filename = plain_name(_text(self._disposition.get(b"filename")) or "")
        else:
            self.fields[name] = b""

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            assert self._name is not None  # as its headers have come
            self.fields[self._name] += data[start:end]
            if len(self.fields[self._name]) > _LONGEST_FIELD:
                raise ApiError(400, f"{self._name} must have at most {_LONGEST_FIELD} bytes, got more")
            return
        self.size += end - start
        if self.size > self._max_file:
            raise ApiError(413, f"a file must have at most {self._max_file} bytes, got more", code="file_too_large")
        self.content += data[start:end]

    def _end(self) -> None:
        self.is_whole = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of files, in bytes."""

    one: int
    of_a_key: int
    """All that a key has; of all that there are where no keys are asked for."""


async def receive_file(
    service: Service, files: FileStore, owner: str, headers: Headers, body: AsyncIterator[bytes], bounds: Bounds
) -> StoredFile:
    """Keep the file in a body. Raises ApiError; nothing is left of a file that did not come whole."""
    form = _Form(headers.get("content-type", ""), min(bounds.one, bounds.of_a_key))
    file_id, number, is_kept = new_file_id(), 0, False
    try:
        await service.run(_reserve, files, file_id, owner, headers, bounds)
        async for data in body:
            form.write(data)
            while len(form.content) >= PART_BYTES:
                part = bytes(form.content[:PART_BYTES])
                del form.content[:PART_BYTES]
                await _append(service, files, file_id, number, part)
                number += 1
        form.finish()
        seconds = form.seconds
        if form.content:
            await _append(service, files, file_id, number, bytes(form.content))
        assert form.filename is not None  # as the form is whole
        kept = await service.run(files.keep, file_id, owner, form.filename, "batch", form.size, seconds)
        is_kept = True
        return kept
    finally:
        if not is_kept:
            service.soon(files.drop_upload, file_id, owner)


def _reserve(files: FileStore, file_id: str, owner: str, headers: Headers, bounds: Bounds) -> None:
    """Count what is to come before it does. Raises ApiError."""
    declared = headers.get("content-length", "")
    is_declared = re.fullmatch("[0-9]{1,18}", declared)
    size = min(bounds.one, int(declared)) if is_declared else min(bounds.one, bounds.of_a_key)
    full = files.reserve(file_id, owner, size, bounds.of_a_key, _COUNTS_SECONDS)
    if full is None:
        return
    whose = f"the files of the key {owner}" if owner else "all files"
    there = f"{full.there} in {full.files} files" + (f", {full.coming} in uploads" if full.coming else "")
    raise ApiError(
        413,
        f"{whose} must have at most {bounds.of_a_key} bytes together, got {size} more than the {there}; "
        "delete some: GET /v1/files lists them, DELETE /v1/files/ID deletes one",
        code="files_too_large",
    )


async def _append(service: Service, files: FileStore, file_id: str, number: int, part: bytes) -> None:
    if not await service.run(files.append, file_id, number, part):
        raise ApiError(
            503, "Redis has lost parts of the file; send it again", code="upload_lost", retry_after=RETRY_SECONDS
        )


def checked_seconds(given: object, param: str = "expires_after") -> int:
    """The seconds that a file is to be kept. Raises ApiError."""
    if type(given) is not int or not SHORTEST_SECONDS <= given <= LONGEST_SECONDS:
        rule = f"the seconds of {param} must be a whole number from {SHORTEST_SECONDS} to {LONGEST_SECONDS}"
        came = _text(given) if isinstance(given, bytes) else given
        raise ApiError(400, f"{rule}, got {shown(came)}", param=param)
    return given


def _no_form(error: FormParserError) -> ApiError:
    return ApiError(400, f"the body must be multipart/form-data: {str(error)[:200]}", param=_PARAM)


def _text(given: bytes | None) -> str | None:
    return None if given is None else given.decode("utf-8", "replace")
