"""How are the texts of a column kept? Each distinct one once, with codes that stay the same over all pieces."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.readers._numbers import Numbers
from usp_prof.readers.arrays import coded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa
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


class Codes(dict[Any, int]):
    """Gives each key that it is asked for a code: the next number when it is new."""

    def __missing__(self, key: object) -> int:
        code = self[key] = len(self)
        return code


class Texts:
    """A column of texts (or of ids that stand as texts) that grows piece by piece."""

    __slots__ = ("_codes", "_numbers")

    def __init__(self) -> None:
        self._codes = Codes()
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

    Each of `signs` asks something of a combination of values, once; `marked` answers it for rows.
    """

    __slots__ = ("_codes", "_marks", "_numbers", "_signs")

    def __init__(self, *signs: Callable[[tuple[Any, ...]], bool]) -> None:
        self._codes = Codes()
        self._numbers = Numbers(np.int32)
        self._signs = signs
        self._marks = np.zeros(0, np.uint8)

    def look_up(self, *columns: Sequence[object]) -> NDArray[np.int32]:
        """Give the codes of rows, which are not appended."""
        return np.fromiter(map(self._codes.__getitem__, zip(*columns, strict=True)), np.int32, len(columns[0]))

    def marks(self, codes: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Give for rows the signs that hold, each as a bit: the first as the lowest."""
        if len(self._marks) < len(self._codes):
            new = [self._asked(key) for key in islice(self._codes, len(self._marks), None)]
            self._marks = np.append(self._marks, np.array(new, np.uint8))
        return self._marks[codes]

    def marked(self, sign: int, codes: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Say for rows whether a sign holds."""
        return has(self.marks(codes), sign)

    def _asked(self, key: tuple[Any, ...]) -> int:
        return sum(ask(key) << place for place, ask in enumerate(self._signs))

    def add(self, codes: NDArray[np.int32]) -> None:
        """Append rows."""
        self._numbers.add(codes)

    def arrays(self, spellings: Sequence[Callable[[object], str]]) -> list[pa.DictionaryArray]:
        """Give the columns, each with its spelling, and with the values of appended rows alone."""
        codes = self._numbers.array()
        used = np.zeros(len(self._codes), bool)
        used[codes] = True
        keys = [key for key, own in zip(self._codes, used.tolist(), strict=True) if own]
        if len(keys) < len(used):
            codes = (np.cumsum(used) - 1).astype(np.int32)[codes]
        return [_spelt(codes, [key[place] for key in keys], spell) for place, spell in enumerate(spellings)]


def has(marks: NDArray[np.uint8], sign: int) -> NDArray[np.bool_]:
    """Say where a sign holds."""
    return np.asarray(marks & (1 << sign), bool)


def _spelt(codes: NDArray[np.int32], values: Iterable[object], spelling: Callable[[object], str]) -> pa.DictionaryArray:
    """Spell coded values; the texts stand in the order in which they were first met."""
    unique: dict[str, int] = {}
    remap = np.array([unique.setdefault(spelling(value), len(unique)) for value in values], np.int32)
    if len(unique) != len(remap):
        codes = remap[codes]
    return coded(codes, list(unique))


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
