"""How does a column of numbers grow? In place, so that many small pieces leave no holes in memory behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.integer)
_HALF = 1 << 31


class Numbers(Generic[Number]):
    """A column of integers of one type."""

    __slots__ = ("_bytes", "kind")

    def __init__(self, kind: type[Number]) -> None:
        self.kind = kind
        self._bytes = bytearray()

    def add(self, piece: NDArray[Any]) -> None:
        """Append a piece."""
        self._bytes += np.ascontiguousarray(piece, self.kind).data

    def array(self) -> NDArray[Number]:
        """Give the column; nothing can be added afterwards."""
        return np.frombuffer(self._bytes, self.kind)


class NarrowNumbers:
    """A column of integers that are kept in half the room for as long as all of them fit into it."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: Numbers[np.int32] | Numbers[np.int64] = Numbers(np.int32)

    def add(self, piece: NDArray[np.int64]) -> None:
        """Append a piece."""
        if self._kept.kind is np.int32 and len(piece) and not -_HALF <= int(piece.min()) <= int(piece.max()) < _HALF:
            wide = Numbers(np.int64)
            wide.add(self._kept.array().astype(np.int64))
            self._kept = wide
        self._kept.add(piece)

    def add_absent(self, rows: int) -> None:
        """Append -1 for so many rows."""
        self._kept.add(np.full(rows, -1, self._kept.kind))

    def array(self) -> NDArray[np.int32] | NDArray[np.int64]:
        """Give the column; nothing can be added afterwards."""
        return self._kept.array()


def spread(values: NDArray[Any], rows: NDArray[np.bool_], absent: float = -1) -> NDArray[Any]:
    """Put values on the marked rows; the others are absent."""
    if len(values) == len(rows):
        return values
    column = np.full(len(rows), absent, values.dtype)
    column[rows] = values
    return column
