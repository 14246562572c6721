"""Lists of objects, a page at a time, as OpenAI's clients go through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from minilab_gateway.errors import ApiError
from minilab_gen.request import shown


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for."""

    limit: int
    after: str | None
    is_descending: bool

    @classmethod
    def of(cls, request: Request, default: int, most: int) -> Page:
        """Raises ApiError."""
        given = request.query_params.get("limit", str(default))
        if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
            raise ApiError(400, f"limit must be a whole number from 1 to {most}, got {shown(given)}", param="limit")
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ApiError(400, f"order must be asc or desc, got {shown(order)}", param="order")
        return cls(int(given), request.query_params.get("after"), order == "desc")

    def ids(self, oldest_first: Sequence[str]) -> list[str]:
        """All ids behind ``after``, in the order that is asked for. Raises ApiError."""
        ordered = list(reversed(oldest_first)) if self.is_descending else list(oldest_first)
        if self.after is None:
            return ordered
        if self.after not in ordered:
            raise ApiError(400, f"after must be the id of one of the list, got {shown(self.after)}", param="after")
        return ordered[ordered.index(self.after) + 1 :]


def list_object(found: Sequence[Any], limit: int, to_json: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """The first of what was found, and whether there is more."""
    data = [to_json(each) for each in found[:limit]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": len(found) > limit}
