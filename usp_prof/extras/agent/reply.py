"""Replies to an agent: a few sentences, small tables with their source, and notes, as plain, printable JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from usp_prof.model.printable import for_log, printable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MOST_ROWS = 100
LONGEST_TEXT = 300
"""Maximum characters per cell; the names of some kernels fill a page."""
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Table:
    """Rows and their source. `more` is true if further rows were left out."""

    source: str
    columns: tuple[str, ...]
    """Names that end in the unit (`_ns`, `_bytes`, `_fraction`), unless there is a column `unit`."""
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    says: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """What is unknown or doubtful."""

    def plain(self) -> dict[str, Any]:
        """Return the reply as plain data: numbers with six digits, texts printable and cut, unknown values as null."""
        tables = [
            {**asdict(table), "rows": [[plain(cell) for cell in row] for row in table.rows]} for table in self.tables
        ]
        for table in tables:
            table["columns"] = [plain(name) for name in table["columns"]]
            table["source"] = shown(table["source"])
        return {"says": shown(self.says), "tables": tables, "notes": [shown(note) for note in self.notes]}


def table_of_frame(source: str, frame: pd.DataFrame, rows: int) -> Table:
    """Return the first rows of a DataFrame as a table."""
    head = frame.head(bounded(rows))
    cells = tuple(head.itertuples(index=False, name=None))
    return Table(source, tuple(map(str, frame.columns)), cells, more=len(frame) > len(head))


def table_of_arrow(source: str, answer: pa.Table, rows: int) -> Table:
    """Return the first rows of an SQL result; duplicate column names are allowed. Infinity and NaN become text."""
    columns = [[_spelled(cell) for cell in column.to_pylist()] for column in answer.slice(0, bounded(rows)).columns]
    cells = tuple(zip(*columns, strict=True))
    return Table(source, tuple(answer.column_names), cells, more=answer.num_rows > bounded(rows))


def _spelled(cell: Any) -> Any:  # noqa: ANN401 - a cell of any table
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def bounded(rows: int) -> int:
    """Return the number of rows for a reply, limited to `MOST_ROWS`."""
    return max(1, min(rows, MOST_ROWS))


def shown(text: str) -> str:
    """Return a text with control characters escaped, since it may contain names from a trace."""
    return for_log(printable(text))


def plain(cell: Any) -> str | float | bool | None:  # noqa: ANN401 - a cell of any table
    """Convert a cell to plain JSON."""
    if hasattr(cell, "item"):  # a NumPy scalar
        cell = cell.item()
    if isinstance(cell, Decimal):  # DuckDB's type for a sum of integers
        cell = int(cell) if cell == cell.to_integral_value() else float(cell)
    if cell is None or isinstance(cell, bool | int):
        return cell
    if isinstance(cell, float):
        return float(f"{cell:.{_DIGITS}g}") if math.isfinite(cell) else None
    text = shown(str(cell))
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
