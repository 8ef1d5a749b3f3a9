"""Replies to an agent: a few sentences, small tables with their source, and notes; all of it plain, printable JSON."""

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
"""Characters of a cell; the names of some kernels fill a page."""
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with where they come from. `more` says that there are further ones."""

    source: str
    columns: tuple[str, ...]
    """Names that end in the unit (`_ns`, `_bytes`, `_fraction`), unless a column `unit` stands beside."""
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    says: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be known, or is to be doubted."""

    def plain(self) -> dict[str, Any]:
        """Return it as plain data: numbers at six digits, texts printable and cut, what is not known as null."""
        tables = [
            {**asdict(table), "rows": [[plain(cell) for cell in row] for row in table.rows]} for table in self.tables
        ]
        for table in tables:
            table["columns"] = [plain(name) for name in table["columns"]]
            table["source"] = shown(table["source"])
        return {"says": shown(self.says), "tables": tables, "notes": [shown(note) for note in self.notes]}


def table_of_frame(source: str, frame: pd.DataFrame, rows: int) -> Table:
    """Take the first rows of a DataFrame."""
    head = frame.head(bounded(rows))
    cells = tuple(head.itertuples(index=False, name=None))
    return Table(source, tuple(map(str, frame.columns)), cells, more=len(frame) > len(head))


def table_of_arrow(source: str, answer: pa.Table, rows: int) -> Table:
    """Take the first rows of an answer in SQL; two of its columns may have one name. Infinity and NaN are written."""
    columns = [[_spelled(cell) for cell in column.to_pylist()] for column in answer.slice(0, bounded(rows)).columns]
    cells = tuple(zip(*columns, strict=True))
    return Table(source, tuple(answer.column_names), cells, more=answer.num_rows > bounded(rows))


def _spelled(cell: Any) -> Any:  # noqa: ANN401 - a cell of any table
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def bounded(rows: int) -> int:
    """Return how many rows a reply may hold."""
    return max(1, min(rows, MOST_ROWS))


def shown(text: str) -> str:
    """Make a text harmless that may hold names from a trace."""
    return for_log(printable(text))


def plain(cell: Any) -> str | float | bool | None:  # noqa: ANN401 - a cell of any table
    """Make a cell plain JSON."""
    if hasattr(cell, "item"):  # a NumPy scalar
        cell = cell.item()
    if isinstance(cell, Decimal):  # what DuckDB makes of a sum of integers
        cell = int(cell) if cell == cell.to_integral_value() else float(cell)
    if cell is None or isinstance(cell, bool | int):
        return cell
    if isinstance(cell, float):
        return float(f"{cell:.{_DIGITS}g}") if math.isfinite(cell) else None
    text = shown(str(cell))
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
