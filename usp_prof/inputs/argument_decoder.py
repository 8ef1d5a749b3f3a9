"""Decoder of event arguments: the JSON texts of many events at once, into one column per field.

Fields are declared as a msgspec struct: the field name is the name in code, and `name=` is the JSON key if it differs.
Numbers are decoded as numbers; everything else stays JSON text (`msgspec.Raw`). Arguments in another form (a number as
a string, or not an object at all) are read one by one in plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints

ABSENT = msgspec.Raw(b"")
"""The JSON text of a field that an event does not have."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is not valid JSON, or not of the declared type."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedArguments:
    """The fields of many arguments, by name."""

    numbers: dict[str, NDArray[Any] | None]
    """One value per event; `None` if a field is absent in all of them, as most fields are in most pieces."""
    texts: dict[str, Sequence[msgspec.Raw]]
    """JSON text per event; `ABSENT` if there is none."""

    def rows(self, names: Sequence[str]) -> Iterator[tuple[msgspec.Raw, ...]]:
        """Return some of the texts, row by row."""
        return zip(*(self.texts[name] for name in names), strict=True)


class ArgumentDecoder:
    """Decoder of arguments of one type."""

    def __init__(self, arguments: type[msgspec.Struct]) -> None:
        self._type = arguments
        self._decoder = msgspec.json.Decoder(arguments)
        self._fields = msgspec.structs.fields(arguments)

    def decode(self, text: bytes | memoryview, sizes: Ints) -> DecodedArguments:
        """Decode concatenated texts with these sizes; none of them is empty."""
        try:
            decoded = self._decoder.decode_lines(text)  # values need no line breaks between them
            if len(decoded) == len(sizes):
                return self._by_field(decoded)
        except (*DECODE_ERRORS, OverflowError):
            pass
        ends = np.append(0, np.cumsum(sizes)).tolist()
        return self._by_field([self._plainly(text[begin:end]) for begin, end in pairwise(ends)])

    def _by_field(self, decoded: Sequence[msgspec.Struct]) -> DecodedArguments:
        """Convert decoded arguments to columns."""
        names = self._type.__struct_fields__
        columns: Sequence[Sequence[Any]] = list(zip(*map(astuple, decoded), strict=True)) or [()] * len(names)
        numbers, texts = {}, {}
        for field, values in zip(self._fields, columns, strict=True):
            if field.type is msgspec.Raw:
                texts[field.name] = values
            else:
                numbers[field.name] = _array(values, field.default, np.int64 if field.type is int else np.float64)
        return DecodedArguments(numbers, texts)

    def _plainly(self, text: bytes | memoryview) -> msgspec.Struct:
        """Decode one event's arguments in any form; anything but a JSON object counts as empty."""
        written = object_in(text)
        written_fields = (field for field in self._fields if field.encode_name in written)
        return self._type(**{field.name: _as(field.type, written[field.encode_name]) for field in written_fields})


def _array(values: Sequence[float], absent: float, dtype: type[np.generic]) -> NDArray[Any] | None:
    """Return numbers as an array; None if all are absent."""
    if not values or (values[0] is absent and values.count(absent) == len(values)):
        return None
    return np.fromiter(values, dtype, len(values))


def _as(kind: object, value: object) -> Any:  # noqa: ANN401 - the type that the field declares
    if kind is int:
        return whole_number(value)
    if kind is float:
        return real_number(value)
    return msgspec.Raw(msgspec.json.encode(value))


def object_in(text: bytes | memoryview | str) -> dict[str, Any]:
    """Return the JSON object in a text; empty if it has none."""
    try:
        written = msgspec.json.decode(text)
    except DECODE_ERRORS:
        return {}
    return written if isinstance(written, dict) else {}


def whole_number(value: object) -> int:
    """Convert a decoded value to a 64-bit integer: 12 for 12.5 and "12"; -1 if it is not a number."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20 else -1
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**63 else -1
    return value if type(value) is int and -(2**63) <= value < 2**63 else -1


def real_number(value: object) -> float:
    """Convert a decoded value to a float; NaN if it is not a number."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type] # other types raise
    except (TypeError, ValueError, OverflowError):
        return math.nan
