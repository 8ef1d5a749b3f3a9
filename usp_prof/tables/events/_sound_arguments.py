"""What do arguments say, where they are sound? One typed decode of many; texts once for each combination of them.

Numbers are decoded as numbers. Texts, and what lies inside lists, are few distinct combinations in a trace of a
program that does the same again and again: each is told by a code, and read carefully once. What is written in
another way than this expects (numbers as strings, arguments that are no objects) is left to the careful reader.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from usp_prof.inputs.kineto.growing import Codes, spread
from usp_prof.model.schema import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.tables.events.field import Field

_ABSENT = msgspec.Raw(b"")
_NUMBERS = {Kind.INT: (int, -1, np.int64), Kind.FLOAT: (float, math.nan, np.float64)}
_BETWEEN = b"\0"
_MANY = 1 << 14
"""Distinct combinations beyond which it does not pay to tell them apart."""
ROWS = 1 << 10
"""Arguments that are decoded at once: what is made of more falls out of the processor's cache."""


class SoundArguments:
    """Fields of arguments: numbers by row, and a code by row for the combination of all others."""

    def __init__(self, fields: Sequence[Field]) -> None:
        asked = Counter(field.outer for field in fields)
        self._typed = [field for field in fields if field.kind in _NUMBERS and asked[field.key] == 1]
        self.others = [field for field in fields if field not in self._typed]
        self._keys = tuple(dict.fromkeys(field.outer for field in self.others))
        self._decoder = _decoder(tuple((field.key, field.kind) for field in self._typed), self._keys)
        self._codes = Codes()
        self._nothing = self._codes[_BETWEEN * max(len(self._keys) - 1, 0)]
        self._parts: list[list[NDArray[Any]]] = []

    def read(self, chosen: pa.Array) -> bool:
        """Read some arguments, best no more than `ROWS`; says no when they are not what this expects."""
        part = self._part(*_sizes_and_text(chosen))
        if part is not None:
            self._parts.append(part)
        return part is not None and len(self._codes) <= _MANY

    def columns(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.int32]]:
        """Give the numbers that were read, and the code of each row's combination of the others."""
        *numbers, codes = map(np.concatenate, zip(*self._parts, strict=True))
        return {field.name: column for field, column in zip(self._typed, numbers, strict=True)}, codes

    def combinations(self) -> list[bytes]:
        """Give the distinct combinations as JSON objects, in the order of their codes."""
        return [self._object(combination) for combination in self._codes]

    def _part(self, sizes: NDArray[np.int64], text: memoryview) -> list[NDArray[Any]] | None:
        """Read so few arguments that what is made of them stays near: a column for each number, and the codes."""
        said = sizes > 0
        try:
            decoded = self._decoder.decode_lines(text)
            columns = list(zip(*map(astuple, decoded), strict=True)) or [()] * (len(self._typed) + len(self._keys))
            numbers = [_numbers(column, field.kind) for field, column in zip(self._typed, columns, strict=False)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
            return None
        if len(decoded) != np.count_nonzero(said):
            return None
        absent = [_NUMBERS[field.kind][1] for field in self._typed]
        wide = [spread(column, said, value) for column, value in zip(numbers, absent, strict=True)]
        return [*wide, spread(self._coded(columns[len(self._typed) :], len(decoded)), said, self._nothing)]

    def _coded(self, columns: list[tuple[msgspec.Raw, ...]], rows: int) -> NDArray[np.int32]:
        """Give the code of the combination that stands in each row of some columns."""
        there = [column if _occurs(column) else None for column in columns]
        if all(column is None for column in there):
            return np.full(rows, self._nothing, np.int32)
        empty = (b"",) * rows
        joined = map(_BETWEEN.join, zip(*(empty if one is None else one for one in there), strict=True))
        return np.fromiter(map(self._codes.__getitem__, joined), np.int32, rows)

    def _object(self, combination: bytes) -> bytes:
        parts = zip(self._keys, combination.split(_BETWEEN), strict=True) if self._keys else ()
        return b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(key), text) for key, text in parts if text)


@cache
def _decoder(typed: tuple[tuple[str, Kind], ...], keys: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    fields: list[Any] = []
    for key, kind in typed:
        type_, absent, _ = _NUMBERS[kind]
        fields.append((f"f{len(fields)}", type_, msgspec.field(default=absent, name=key)))
    for key in keys:
        fields.append((f"f{len(fields)}", msgspec.Raw, msgspec.field(default=_ABSENT, name=key)))
    return msgspec.json.Decoder(msgspec.defstruct("Arguments", fields, gc=False))


def _occurs(column: tuple[msgspec.Raw, ...]) -> bool:
    return bool(column) and (column[0] is not _ABSENT or column.count(_ABSENT) < len(column))


def _numbers(column: tuple[Any, ...], kind: Kind) -> NDArray[Any]:
    _, absent, dtype = _NUMBERS[kind]
    if column and column[0] is absent and column.count(absent) == len(column):
        return np.full(len(column), absent, dtype)
    return np.fromiter(column, dtype, len(column))


def _sizes_and_text(chosen: pa.Array) -> tuple[NDArray[np.int64], memoryview]:
    """Give the sizes of texts and all of them, one behind the other."""
    wide = np.int64 if pa.types.is_large_string(chosen.type) else np.int32
    _, offsets, data = chosen.buffers()
    bounds = np.frombuffer(offsets, wide)[chosen.offset : chosen.offset + len(chosen) + 1]
    text = memoryview(data)[int(bounds[0]) : int(bounds[-1])] if data is not None else memoryview(b"")
    return np.diff(bounds), text
