"""What stands for a table that is too large to be held beside what it is made of? Its parts, made one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa


AT_ONCE = 1 << 17
"""Rows that are held at once: a shorter table need not be made in parts."""


class Parted:
    """A table that is made of rows `begin` to `end` at a time, as often as it is asked for."""

    def __init__(self, schema: pa.Schema, num_rows: int, make: Callable[[int, int], pa.Table]) -> None:
        """Take what makes a part: `make(begin, end)`, by `schema`."""
        self.schema = schema
        self.num_rows = num_rows
        self._make = make

    def parts(self, rows: int) -> Iterator[pa.Table]:
        """Give parts of so many rows; one without any where there are none."""
        for begin in range(0, max(self.num_rows, 1), rows):
            yield self._make(begin, min(begin + rows, self.num_rows))

    def if_long(self) -> Parted | pa.Table:
        """Give the parts of a long table, a short one in memory."""
        return self if self.num_rows > AT_ONCE else self.whole()

    def whole(self) -> pa.Table:
        """Give the table, in memory."""
        return self._make(0, self.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """Give one column."""
        return self.whole().column(name)
