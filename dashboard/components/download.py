"""Tables: Streamlit's grid, with all rows to download as raw values."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, TableColumn
from usp_prof.report.format import Cell, column_scale, head_text

MOST_ROWS = 5000
UNKNOWN = "\u2014"
_TOO_LONG = 2**63
_CROWDED = 8
_LONG, _VERY_LONG = 16, 48
_NARROW, _WIDE = 130, 320


def table(frame: pd.DataFrame, name: str) -> None:
    """Show raw values (only the first rows if there are many), and offer all of them as CSV."""
    _grid(frame, number_formats(frame) | long_names(frame.head(MOST_ROWS)))
    rows = len(frame)
    count_text = _counted(rows) if rows <= MOST_ROWS else f"the first {MOST_ROWS:,} of {rows:,} rows"
    _csv(frame, name, count_text)


def number_formats(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the format of each column of fractional numbers, so that their decimals align."""
    forms = {name: _bare_numbers(frame[name].tolist())[1] for name in frame.select_dtypes("float")}
    return {name: form for name, form in forms.items() if form is not None}  # the grid hides columns without a format


def long_names(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the width of each column of long names, which would push the others out of sight."""
    names = [str(name) for name in frame.columns if _is_long(frame[name], _VERY_LONG)]
    return dict.fromkeys(names, st.column_config.TextColumn(width=_WIDE))


def show_table(block: DataTable, name: str, *, raw: pd.DataFrame | None = None) -> None:
    """Show a table of the report, each column on one scale; the CSV holds `raw`, or the block's own values."""
    shown, columns = scaled(block)
    _grid(shown, columns)
    rows = len(block.rows)
    count_text = f"the first {rows:,} of {rows + block.more:,} rows" if block.more else _counted(rows)
    _csv(plain(block) if raw is None else raw, name, count_text)


def numbers(shown: pd.DataFrame, raw: pd.DataFrame, name: str) -> None:
    """Show figures that are each on a scale of their own, as numbers that sort; the CSV holds `raw`."""
    _grid(shown, {})
    _csv(raw, name, _counted(len(raw)))


def plain(block: DataTable) -> pd.DataFrame:
    """Return a table's raw values, with their units in the heads."""
    heads = distinct([column.head + (f" [{column.unit}]" if column.unit else "") for column in block.columns])
    return pd.DataFrame(list(block.rows), columns=heads)


def scaled(block: DataTable) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a table's values and formats; numbers stay numbers, so that the grid sorts them."""
    columns = [[row[place] for row in block.rows] for place in range(len(block.columns))]
    shown_columns = [_column(head, cells) for head, cells in zip(block.columns, columns, strict=True)]
    heads = distinct([head for head, _, _ in shown_columns])
    frame = pd.DataFrame({head: cells for head, (_, cells, _) in zip(heads, shown_columns, strict=True)})
    kinds = {head: kind for head, (_, _, kind) in zip(heads, shown_columns, strict=True) if kind is not None}
    if len(heads) > _CROWDED:
        # Long names would hide the figures; a click on a cell shows the full name.
        long_heads = [head for head in heads if _is_long(frame[head], _LONG)]
        kinds |= dict.fromkeys(long_heads, st.column_config.TextColumn(width=_NARROW))
    return frame, kinds


def _is_long(cells: pd.Series[Any], most: int) -> bool:
    return not pd.api.types.is_numeric_dtype(cells) and any(
        isinstance(cell, str) and len(cell) > most for cell in cells
    )


def _column(head: TableColumn, cells: list[Cell]) -> tuple[str, pd.Series[Any], Any]:
    """Return a column's head, its values, and how the grid writes them (None: in its own way)."""
    numbers = [cell for cell in cells if not isinstance(cell, str)]
    if len(numbers) < len(cells):
        texts = [None if cell is None else str(cell) for cell in cells]
        return head.head, pd.Series(texts, dtype="object"), None
    if head.unit is None:
        return head.head, *_bare_numbers(numbers)
    scale = column_scale(numbers, head.unit)
    scaled_cells = [None if cell is None else cell / scale.factor for cell in numbers]
    values = pd.Series(scaled_cells, dtype="float64")
    are_counts = head.unit is Unit.COUNT and bool((values.dropna() % 1 == 0).all())
    values = values.mask(values.round(scale.decimals) == 0, 0.0)  # else the grid writes -0.0
    form = f"%.{scale.decimals}f"
    if are_counts or not scale.decimals:
        values = values.round()  # the grid's own way to write thousands would show decimals as well
        form = "localized"
    suffix = scale.suffix and f"({scale.suffix})"
    return head_text(head.head, suffix), values, st.column_config.NumberColumn(format=form)


def _bare_numbers(numbers: list[float | int | None]) -> tuple[pd.Series[Any], Any]:
    """Return numbers without a unit: integers such as ranks unchanged, others with the decimals that they need."""
    if all(cell is None or (cell == cell // 1 and abs(cell) < _TOO_LONG) for cell in numbers):
        return pd.Series(numbers, dtype="Int64"), None
    decimals = column_scale(numbers, Unit.COUNT).decimals
    values = pd.Series(numbers, dtype="float64")
    values = values.mask(values.round(decimals) == 0, 0.0)
    return values, st.column_config.NumberColumn(format=f"%.{decimals}f")


def _grid(frame: pd.DataFrame, columns: dict[str, Any]) -> None:
    st.dataframe(
        frame.head(MOST_ROWS), hide_index=True, width="stretch", placeholder=UNKNOWN, column_config=columns or None
    )


def _counted(rows: int) -> str:
    return f"{rows:,} {'row' if rows == 1 else 'rows'}"


def _csv(frame: pd.DataFrame, name: str, count_text: str) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(count_text, width="content")
        st.download_button(
            "CSV", lambda: frame.to_csv(index=False).encode(), f"{name}.csv", "text/csv", key=f"csv-{name}",
            on_click="ignore",
        )  # fmt: skip


def distinct(heads: list[str]) -> list[str]:
    """Add spaces to equal heads, because a grid needs distinct ones."""
    return [head + " " * heads[:place].count(head) for place, head in enumerate(heads)]
