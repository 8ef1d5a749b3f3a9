"""What do the gate's tables look like on a terminal? No lines, and close together where it is narrow."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

_ROOMY = 100
"""From this width on there is room for two blanks between columns."""


def metric_cell(key: str, width: int) -> Text:
    """Write a metric's name; where it is narrow, its dimensions go to a line of their own."""
    return Text(key if width >= _ROOMY else key.replace("[", "\n["))


def bare_table(width: int, title: str = "") -> Table:
    """Give an empty table without lines for a terminal of this width."""
    return Table(
        box=None,
        pad_edge=False,
        collapse_padding=width < _ROOMY,
        header_style="bold",
        title=title or None,
        title_justify="left",
    )
