"""How does a column of numbers grow? In place, so that many small pieces leave no holes in memory behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.integer)


class Numbers(Generic[Number]):
    """A column of integers of one type."""

    __slots__ = ("_bytes", "_kind")

    def __init__(self, kind: type[Number]) -> None:
        self._kind = kind
        self._bytes = bytearray()

    def add(self, piece: NDArray[Number]) -> None:
        """Append a piece."""
        self._bytes += np.ascontiguousarray(piece, self._kind).data

    def array(self) -> NDArray[Number]:
        """Give the column; nothing can be added afterwards."""
        return np.frombuffer(self._bytes, self._kind)
