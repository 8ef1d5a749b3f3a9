"""How are the texts of a column kept? Each distinct one once, with codes that stay the same over all pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from usp_prof.readers._numbers import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def code(self, value: object) -> int:
        """Give the code of a value; -1 when it has not been met."""
        return self._codes.get(value, -1)

    def array(self, spelling: Callable[[object], str]) -> pa.DictionaryArray:
        """Give the column, each value spelt by `spelling`; values spelt alike become one."""
        unique: dict[str, int] = {}
        remap = np.array([unique.setdefault(spelling(v), len(unique)) for v in self._codes], np.int32)
        codes = self._numbers.array()
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
