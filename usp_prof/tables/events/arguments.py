"""Fields of event arguments, parsed from the JSON text of many events at once.

The fields that a table needs are declared (`Field`), and one msgspec type is built from them. Numbers are typed by one
decode. Texts and list contents have few distinct combinations in a repetitive program: each event keeps the code of its
combination, and each distinct value is parsed once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof import limits
from usp_prof.columns.arrays import Ints
from usp_prof.columns.arrow import coded
from usp_prof.columns.rows import lookup, text_codes
from usp_prof.inputs.argument_decoder import ABSENT, DECODE_ERRORS, ArgumentDecoder, real_number, whole_number
from usp_prof.inputs.growing import Codes, Combinations, plain_text, spread, take_texts
from usp_prof.inputs.memory import release_pages
from usp_prof.model.schema import Kind

_NUMBERS = {Kind.INT: (int, -1, np.int64), Kind.FLOAT: (float, math.nan, np.float64)}
"""Kinds of numbers: decoded type, value if absent, and column type."""
_ROWS = 1 << 10
"""Events decoded at once: results for more events do not fit in the processor's cache."""
_SPAN = 16 << 20
"""Bytes of argument text after which its pages are released: the text may be in a file."""


@dataclass(frozen=True, slots=True)
class Field:
    """One argument: its column, JSON key and kind; `item` is an index in the list."""

    name: str
    key: str
    kind: Kind = Kind.INT
    item: int | None = None
    within: limits.Range = limits.NUMBER
    """Valid range of an integer; values outside count as absent."""


def read_arguments(args: pa.ChunkedArray, rows: Ints, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Read fields of some rows: integers and floats as NumPy arrays, texts as Arrow dictionary arrays.

    Absent values are -1, NaN or empty. Arguments that are not a JSON object count as empty.
    """
    columns = _FieldColumns(fields)
    order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
    ascending = rows if order is None else rows[order]
    for near in _near(args, ascending):
        for begin in range(0, len(near), _ROWS):
            columns.add(take_texts(args, near[begin : begin + _ROWS]))
        release_pages()
    # Row numbers in the requested order: row `order[k]` was read as number k.
    place = None if order is None else np.argsort(order)
    return {field.name: columns.column(field, place) for field in fields}


def _near(args: pa.ChunkedArray, ascending: Ints) -> list[Ints]:
    """Split ascending rows into groups within `_SPAN` bytes."""
    if not len(ascending):
        return []
    rows_in_span = max(int(_SPAN / max(args.nbytes / len(args), 1)), 1)
    return np.split(ascending, np.flatnonzero(np.diff(ascending // rows_in_span)) + 1)


class _FieldColumns:
    """Columns of some fields, extended batch by batch."""

    def __init__(self, fields: Sequence[Field]) -> None:
        keys = [field.key for field in fields]
        # A key is decoded as a number if exactly one field needs it, and not as a list item.
        number_kinds = {
            field.key: field.kind
            for field in fields
            if field.kind in _NUMBERS and field.item is None and keys.count(field.key) == 1
        }
        self._number_kinds = number_kinds
        self._text_keys = [key for key in dict.fromkeys(keys) if key not in number_kinds]
        self._decoder = _decoder(tuple(number_kinds.items()), tuple(self._text_keys))
        self._numbers: dict[str, list[NDArray[Any]]] = {key: [] for key in number_kinds}
        self._texts = Combinations(len(self._text_keys))

    def add(self, batch: pa.Array) -> None:
        """Append the fields of some arguments, ideally at most `_ROWS`."""
        sizes, text = _sizes_and_text(batch)
        is_written = sizes > 0
        decoded = self._decoder.decode(text, sizes[is_written])
        for place, (key, kind) in enumerate(self._number_kinds.items()):
            _, absent, dtype = _NUMBERS[kind]
            values = decoded.numbers[f"number{place}"]
            full = np.full(len(batch), absent, dtype) if values is None else spread(values, is_written, absent)
            self._numbers[key].append(full)
        if self._text_keys:
            self._texts.add(is_written, decoded.rows([f"text{place}" for place in range(len(self._text_keys))]))

    @cached_property
    def _texts_of_key(self) -> dict[str, tuple[bytes, ...]]:
        """JSON texts by key, one per combination."""
        return dict(zip(self._text_keys, zip(*self._texts.distinct(), strict=True), strict=True))

    def column(self, field: Field, place: Ints | None) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
        """Return a field's column, in the order of `place`."""
        if field.key in self._numbers:
            _, _, dtype = _NUMBERS[field.kind]
            numbers = np.concatenate([np.zeros(0, dtype), *self._numbers[field.key]])
            return numbers if place is None else numbers[place]
        texts = Codes()
        code_by_combination = np.array([texts[text] for text in self._texts_of_key[field.key]], np.int32)
        codes = code_by_combination[self._texts.codes()]
        codes = codes if place is None else codes[place]
        values = [_value(text, field.item) for text in texts]
        if field.kind is Kind.TEXT:
            return _texts([_text(value) for value in values], codes)
        _, absent, dtype = _NUMBERS[field.kind]
        as_number = whole_number if field.kind is Kind.INT else real_number
        return lookup([as_number(value) for value in values], codes, missing=absent).astype(dtype)


@cache
def _decoder(numbers: tuple[tuple[str, Kind], ...], text_keys: tuple[str, ...]) -> ArgumentDecoder:
    """Return the decoder of some keys: `number0`, `number1`, ... and `text0`, `text1`, ... in their order."""
    fields: list[Any] = []
    for place, (key, kind) in enumerate(numbers):
        type_, absent, _ = _NUMBERS[kind]
        fields.append((f"number{place}", type_, msgspec.field(default=absent, name=key)))
    for place, key in enumerate(text_keys):
        fields.append((f"text{place}", msgspec.Raw, msgspec.field(default=ABSENT, name=key)))
    return ArgumentDecoder(msgspec.defstruct("FieldArguments", fields, gc=False))


def recorded_list(json_text: str) -> list[Any]:
    """Return the list in the JSON text of an argument; empty if it is missing or damaged."""
    try:
        items = json.loads(json_text) if json_text else []
    except ValueError:
        return []
    return items if isinstance(items, list) else []


def _value(text: bytes, item: int | None) -> object:
    """Decode a JSON text, or one item of a JSON list; `None` if absent."""
    try:
        value = msgspec.json.decode(text) if text else None
    except DECODE_ERRORS:
        return None
    if item is None:
        return value
    return value[item] if isinstance(value, list) and item < len(value) else None


def _text(value: object) -> str:
    """Format a value as JSON without spaces; a text unchanged, an absent value as an empty text."""
    if value is None or isinstance(value, str):
        return plain_text(value)
    return msgspec.json.encode(value).decode()


def _texts(values: Sequence[str], codes: NDArray[np.int32]) -> pa.DictionaryArray:
    """Return a column of texts from codes; equal texts are merged, in order of their first code."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(values)))
    new_code = np.zeros(len(values), np.int64)
    new_code[used], texts = text_codes(values[code] for code in used.tolist())
    return coded(new_code[codes], texts)


def _sizes_and_text(batch: pa.Array) -> tuple[NDArray[Any], memoryview]:
    """Return the size of each text in bytes, and all texts concatenated."""
    if not len(batch):
        return np.zeros(0, np.int64), memoryview(b"")
    dtype = np.int64 if pa.types.is_large_string(batch.type) else np.int32
    _, offsets, data = batch.buffers()
    bounds = np.frombuffer(offsets, dtype)[batch.offset : batch.offset + len(batch) + 1]
    text = memoryview(data)[int(bounds[0]) : int(bounds[-1])] if data is not None else memoryview(b"")
    return np.diff(bounds), text
