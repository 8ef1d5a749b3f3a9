"""How are the texts of a column kept? Each distinct one once, with codes that stay the same over all pieces."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from usp_prof.readers._numbers import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

_TODAY = {
    "operator": "cpu_op",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "pythonfunction": "python_function",
    "trace": "Trace",
}
"""The categories of 2021 (and their like) in today's spelling, by their lower-case form."""


class _Codes(dict[Any, int]):
    def __missing__(self, key: object) -> int:
        code = self[key] = len(self)
        return code


class Texts:
    """A column of texts (or of ids that stand as texts) that grows piece by piece."""

    __slots__ = ("_codes", "_numbers")

    def __init__(self) -> None:
        self._codes = _Codes()
        self._numbers = Numbers(np.int32)

    def add(self, values: Sequence[object]) -> NDArray[np.int32]:
        """Append a piece; gives its codes."""
        piece = np.fromiter(map(self._codes.__getitem__, values), np.int32, len(values))
        self._numbers.add(piece)
        return piece

    def array(self, spelling: Callable[[object], str]) -> pa.DictionaryArray:
        """Give the column, each value spelt by `spelling`; values spelt alike become one."""
        return _spelt(self._numbers.array(), self._codes, spelling)


class Kinds:
    """Columns of few distinct values that grow together: one look-up and one code for all of them.

    `marked` is the place of one of the columns and a value of it: `add` says which rows hold that value.
    """

    __slots__ = ("_codes", "_hits", "_marked", "_numbers")

    def __init__(self, marked: tuple[int, object]) -> None:
        self._codes = _Codes()
        self._numbers = Numbers(np.int32)
        self._marked = marked
        self._hits = bytearray()

    def add(self, *columns: Sequence[object]) -> NDArray[np.bool_]:
        """Append a piece; marks the rows that hold the marked value."""
        piece = np.fromiter(map(self._codes.__getitem__, zip(*columns, strict=True)), np.int32, len(columns[0]))
        self._numbers.add(piece)
        place, value = self._marked
        self._hits += bytes(key[place] == value for key in islice(self._codes, len(self._hits), None))
        return np.frombuffer(bytes(self._hits), bool)[piece]

    def arrays(self, spellings: Sequence[Callable[[object], str]]) -> list[pa.DictionaryArray]:
        """Give the columns, each with its spelling."""
        codes = self._numbers.array()
        return [_spelt(codes, [key[place] for key in self._codes], spell) for place, spell in enumerate(spellings)]


def _spelt(codes: NDArray[np.int32], values: Iterable[object], spelling: Callable[[object], str]) -> pa.DictionaryArray:
    """Spell coded values; the texts stand in the order in which they were first met."""
    unique: dict[str, int] = {}
    remap = np.array([unique.setdefault(spelling(value), len(unique)) for value in values], np.int32)
    if len(unique) != len(remap):
        codes = remap[codes]
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(unique), pa.string()))


def plain_text(value: object) -> str:
    """Spell a value as text that can be stored."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).encode("utf-8", "replace").decode("utf-8")


def category_text(value: object) -> str:
    """Spell a category as Kineto does today."""
    text = plain_text(value)
    return _TODAY.get(text.lower(), text) if text[:1].isupper() else text
