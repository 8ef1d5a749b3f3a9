"""What stands at some paths of a few JSON objects? Read here where they are plain, as nearly all arguments are.

DuckDB reads any JSON, but to load it, to connect and to plan a query takes longer than to read a few hundred objects.
Plain are objects of texts without escapes, whole numbers, truth values, and lists of those: there is only one way to
write them, so that what is given here is what DuckDB gives. (Of a key that stands twice in an object the last counts,
as wherever arguments are decoded; DuckDB takes the first.)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW = 1 << 12
"""Objects up to which this is quicker."""
_PATH = re.compile(r'\$\.(?:"([^"]*)"|([^".\[\]]+))(?:\[(\d+)\])?')
_OTHERWISE = re.compile(rb"\\|[\[,:\s]-0\s*[,\]}]")
"""What can be written in several ways: escapes, and a zero below zero."""


def read_plainly(objects: Sequence[bytes], paths: Sequence[str]) -> list[list[str | None]] | None:
    """Give what stands at each path as text, `None` where nothing does; `None` at all when something is not plain."""
    steps = [_PATH.fullmatch(path) for path in paths]
    columns: list[list[str | None]] = []
    decoded = [_decoded(text) for text in objects]
    for step in steps:
        if step is None or None in decoded:
            return None
        key, inside = step[1] or step[2], step[3]
        found = [each.get(key) for each in decoded if each is not None]
        if inside is not None:
            found = [_item(value, int(inside)) for value in found]
        columns.append([None if value is None else _text(value) for value in found])
    return columns


def _decoded(text: bytes) -> dict[str, Any] | None:
    """Read an object, of which nothing may stand; `None` when it is not plain."""
    if _OTHERWISE.search(text):
        return None
    try:
        decoded = msgspec.json.decode(text or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) and all(map(_is_plain, decoded.values())) else None


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str)


def _item(value: object, place: int) -> object:
    return value[place] if isinstance(value, list) and place < len(value) else None


def _text(value: object) -> str:
    """Write a value without spaces between its parts; a text as it is."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
