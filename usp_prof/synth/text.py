"""How do many events of one form become JSON text quickly? One template, repeated, filled with all numbers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

TIME = "%d.%03d"
"""Where a template takes a time: Kineto writes microseconds with three decimals."""

_CHUNK = 4096


def literal(text: str) -> str:
    """Put fixed text into a template."""
    return text.replace("%", "%%")


def micro(nanoseconds: Ints) -> tuple[Ints, Ints]:
    """Split nanoseconds into the two numbers of a `TIME`."""
    return nanoseconds // 1000, nanoseconds % 1000


def fill(template: str, *columns: Ints | int) -> Iterator[str]:
    """Write one copy of the template for each row, in chunks; every `%d` takes its column's number."""
    rows = max((len(column) for column in columns if isinstance(column, np.ndarray)), default=1)
    table = np.empty((rows, len(columns)), dtype=np.int64)
    for number, column in enumerate(columns):
        table[:, number] = column
    for first in range(0, rows, _CHUNK):
        part = table[first : first + _CHUNK]
        yield (template * len(part)) % tuple(part.ravel().tolist())
