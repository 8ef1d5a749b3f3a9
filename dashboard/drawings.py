"""Charts as Bokeh's JSON, drawn once per theme for all visitors, and the BokehJS that shows them.

The charts of the whole run are stored with its report, so a new server shows them without loading Bokeh. Others are
drawn on first use.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from usp_prof import charts
from usp_prof.charts.inputs import ChartInput
from usp_prof.charts.theme import DARK, LIGHT, Theme
from usp_prof.report import stored_document
from usp_prof.report.document import Chart, Document

if TYPE_CHECKING:
    from starlette.requests import Request


MOST_STORED = 256
THEMES = (LIGHT, DARK)
LIBRARY = f"/usp/bokeh/{version('bokeh')}/bokeh.min.js"
"""The part of BokehJS that draws; no chart has widgets or tables."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure for the browser."""

    item: str
    stamp: str
    height: int


class Drawings:
    """Cache of drawings by chart and theme; the least recently used are dropped."""

    def __init__(self, most_stored: int = MOST_STORED) -> None:
        self._most_stored = most_stored
        self._kept: OrderedDict[tuple[int, str], tuple[ChartInput, Drawing]] = OrderedDict()
        self._lock = threading.Lock()

    def drawing(self, data: ChartInput, theme: Theme) -> Drawing:
        """Return the drawing of a chart, identified by the object, not by its value."""
        key = id(data), theme.name
        with self._lock:
            entry = self._kept.get(key)
            if entry is not None:
                self._kept.move_to_end(key)
                return entry[1]
        return self.keep(data, theme, drawn(data, theme))

    def keep(self, data: ChartInput, theme: Theme, drawing: Drawing) -> Drawing:
        """Store a drawing unless there is one, which a page may already show; return the stored one.

        The chart is stored too, so that its id is not reused.
        """
        with self._lock:
            stored = self._kept.setdefault((id(data), theme.name), (data, drawing))[1]
            while len(self._kept) > self._most_stored:
                self._kept.popitem(last=False)
        return stored


def drawn(data: ChartInput, theme: Theme) -> Drawing:
    """Draw a chart; its model ids are unique across processes."""
    stamp = token_hex(12)
    item = charts.as_json(data, theme, f"{stamp}-")
    return Drawing(json.dumps(item, separators=(",", ":")), stamp, charts.height_of(item))


def drawings_form() -> str:
    """Return the format name of stored drawings: it depends on the report's format and Bokeh's version."""
    return f"drawings-3-{version('bokeh')}-{stored_document.form()}"


def write_drawings(document: Document, folder: Path) -> None:
    """Draw all charts of a report in each theme, and write them."""
    for theme in THEMES:
        drawings = [drawn(data, theme) for data in charts_of(document)]
        rows = [(drawing.item, drawing.stamp, drawing.height) for drawing in drawings]
        (folder / f"{theme.name}.json").write_text(json.dumps(rows), encoding="utf-8")


def read_drawings(document: Document, folder: Path, into: Drawings) -> None:
    """Read the drawings of a report's charts."""
    for theme in THEMES:
        rows = json.loads((folder / f"{theme.name}.json").read_text(encoding="utf-8"))
        for data, (item, stamp, height) in zip(charts_of(document), rows, strict=True):
            into.keep(data, theme, Drawing(item, stamp, height))


def charts_of(document: Document) -> list[ChartInput]:
    """Return the data of a report's charts, in order."""
    parts = (document.summary, *document.sections)
    return [block.data for part in parts for block in part.blocks if isinstance(block, Chart)]


@cache
def _bokehjs() -> tuple[bytes, bytes]:
    """Return the library, plain and gzipped."""
    from bokeh.settings import settings  # noqa: PLC0415 - a page without charts needs no Bokeh

    plain = Path(str(settings.bokehjs_path()), "js", "bokeh.min.js").read_bytes()
    return plain, gzip.compress(plain, 6, mtime=0)


def answer_library(request: Request) -> Response:
    """Return the library; it is compressed once."""
    plain, packed = _bokehjs()
    headers = {"Cache-Control": "public, immutable, max-age=31536000", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(packed, headers=headers | {"Content-Encoding": "gzip"}, media_type="text/javascript")
    return Response(plain, headers=headers | {"Content-Encoding": "identity"}, media_type="text/javascript")


LIBRARY_ROUTE = Route(LIBRARY, answer_library)
