"""How is a chart drawn once, whoever looks at it? As Bokeh's JSON, kept with the run's report, for both themes.

Those of the whole run are written beside its report: a server that has just started shows them without loading Bokeh.
All others are drawn when they are first looked at.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from importlib.metadata import version
from secrets import token_hex
from typing import TYPE_CHECKING

from dashboard import kept
from usp_prof.charts.as_json import as_json, height_of
from usp_prof.charts.theme import DARK, LIGHT
from usp_prof.report.document import Chart

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.charts.inputs import ChartInput
    from usp_prof.charts.theme import Theme
    from usp_prof.report.document import Document

MOST_KEPT = 256
THEMES = (LIGHT, DARK)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure as the browser takes it."""

    item: str
    stamp: str
    height: int


class Drawings:
    """Draws each chart once for each theme, and lets the least recently asked ones go."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._most_kept = most_kept
        self._kept: OrderedDict[tuple[int, str], tuple[ChartInput, Drawing]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, data: ChartInput, theme: Theme) -> Drawing:
        """Give the drawing of a chart, which is known by what it is, not by what it equals."""
        key = id(data), theme.name
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known[1]
        made = drawn(data, theme)
        self.keep(data, theme, made)
        return made

    def keep(self, data: ChartInput, theme: Theme, made: Drawing) -> None:
        """Keep a drawing; the chart is kept with it, so that no other one can be taken for it."""
        with self._lock:
            self._kept[id(data), theme.name] = data, made
            while len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)


def drawn(data: ChartInput, theme: Theme) -> Drawing:
    """Draw a chart; its models go by names that no other process's drawings have."""
    stamp = token_hex(12)
    item = as_json(data, theme, f"{stamp}-")
    return Drawing(json.dumps(item, separators=(",", ":")), stamp, height_of(item))


def form() -> str:
    """Name the form of written drawings: that of the report whose charts they are, drawn by this Bokeh."""
    return f"drawings-2-{version('bokeh')}-{kept.form()}"


def write(document: Document, folder: Path) -> None:
    """Draw all charts of a report in each theme, and write them."""
    for theme in THEMES:
        found = [drawn(data, theme) for data in charts(document)]
        rows = [(each.item, each.stamp, each.height) for each in found]
        (folder / f"{theme.name}.json").write_text(json.dumps(rows), encoding="utf-8")


def read(document: Document, folder: Path, into: Drawings) -> None:
    """Read the drawings of a report's charts."""
    for theme in THEMES:
        rows = json.loads((folder / f"{theme.name}.json").read_text(encoding="utf-8"))
        for data, (item, stamp, height) in zip(charts(document), rows, strict=True):
            into.keep(data, theme, Drawing(item, stamp, height))


def charts(document: Document) -> list[ChartInput]:
    """List what the charts of a report show, in its order."""
    parts = (document.summary, *document.sections)
    return [block.data for part in parts for block in part.blocks if isinstance(block, Chart)]
