"""Tables in notebooks: numbers in readable units, long texts cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.metric import Unit
from usp_prof.model.printable import shortened
from usp_prof.report.format import column, quantity

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 240
"""Maximum characters of a text in a notebook's cell; `.df` has the complete text."""
_UNIT_OF_NAME_END = {
    "_bytes_per_second": Unit.BYTES_PER_SECOND,
    "_flop_per_second": Unit.FLOP_PER_SECOND,
    "_bytes": Unit.BYTES,
    "_fraction": Unit.FRACTION,
    "_ns": Unit.NS,
    "_ratio": Unit.RATIO,
}
_MOMENTS = ("start_ns", "end_ns")
"""Columns with times since 1970, which no unit makes shorter."""


def table_html(table: pd.DataFrame) -> str:
    """Return a table as HTML for a notebook: numbers in readable units, long texts cut; a wide table scrolls."""
    shown = table.astype(object)
    for name in table.columns:
        shown[name] = [shortened(cell, LONGEST, "\u2026") if isinstance(cell, str) else cell for cell in shown[name]]
    html = _with_units(shown).to_html(index=False, na_rep="", float_format="{:,.4g}".format)
    return f'<div style="overflow-x: auto">{html}</div>'


def _with_units(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with each number in the unit of its row, or in the unit that its column's name ends with."""
    if "unit" in table:
        units = [Unit(text) if text in set(Unit) else None for text in table["unit"]]
        for name in table.columns:
            table[name] = [
                quantity(cell, unit) if unit is not None and isinstance(cell, float) else cell
                for cell, unit in zip(table[name], units, strict=True)
            ]
        return table.drop(columns="unit")
    heads = {}
    for name in table.columns:
        end = next((end for end in _UNIT_OF_NAME_END if name.endswith(end)), "")
        if end and name not in _MOMENTS:
            numbers = table[name].where(table[name].notna(), None)
            suffix, table[name] = column(numbers.tolist(), _UNIT_OF_NAME_END[end])
            head = name.removesuffix(end).replace("_", " ")
            heads[name] = f"{head} [{suffix}]" if suffix else head
    return table.rename(columns=heads)
