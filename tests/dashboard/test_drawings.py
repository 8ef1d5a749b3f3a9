"""Charts drawn once per theme, and stored unchanged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drawn import naming

from dashboard import data, drawings
from dashboard.drawings import Drawings
from usp_prof import open_run
from usp_prof.charts.inputs import BreakdownRows, HeatMap, Part
from usp_prof.charts.theme import DARK, LIGHT
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.build import analyze, build

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.report.document import Document


def _rows() -> BreakdownRows:
    return BreakdownRows(("rank 0", "rank 1"), (Part("compute", "compute", (3, 4)), Part("idle", "idle:host", (2, 1))))


def test_a_chart_is_drawn_once_for_each_theme() -> None:
    stored, rows = Drawings(), _rows()
    light = stored.drawing(rows, LIGHT)
    assert stored.drawing(rows, LIGHT) is light
    assert stored.drawing(rows, DARK).stamp != light.stamp
    assert light.height > 0


def test_an_equal_chart_is_another_drawing() -> None:
    """Two drawings on one page would otherwise share the names of their models."""
    stored = Drawings()
    first, second = stored.drawing(_rows(), LIGHT), stored.drawing(_rows(), LIGHT)
    assert first.stamp != second.stamp
    names = [{root["id"] for root in json.loads(drawing.item)["doc"]["roots"]} for drawing in (first, second)]
    assert not names[0] & names[1]


def test_charts_that_cannot_be_hashed_are_stored_too() -> None:
    stored, chart = Drawings(), HeatMap("compute", (0, 1), (3, 4), np.arange(4.0).reshape(2, 2))
    assert stored.drawing(chart, LIGHT) is stored.drawing(chart, LIGHT)


def test_the_least_recently_used_drawing_is_dropped() -> None:
    stored, first, second, third = Drawings(most_stored=2), _rows(), _rows(), _rows()
    light, other = stored.drawing(first, LIGHT), stored.drawing(second, LIGHT)
    assert stored.drawing(first, LIGHT) is light
    stored.drawing(third, LIGHT)
    assert stored.drawing(first, LIGHT) is light
    assert stored.drawing(second, LIGHT) is not other


def test_a_drawing_that_a_page_may_show_is_not_replaced() -> None:
    stored, rows = Drawings(), _rows()
    shown = stored.drawing(rows, LIGHT)
    assert stored.keep(rows, LIGHT, drawings.drawn(rows, LIGHT)) is shown
    assert stored.drawing(rows, LIGHT) is shown


def test_the_report_is_available_before_its_drawings(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([run_folder], tmp_path, monkeypatch):
        data.document(0, EVERYTHING)
        data.timeline_store(0)
        assert not data.worker.is_ready(("drawings", 0))
        data.prepare().join()
        assert data.worker.is_ready(("drawings", 0))


@pytest.fixture
def document(run_folder: Path, tmp_path: Path) -> Document:
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    return build(run.tables, analyze(run.tables), name=run.name, search_result=NOTHING_FOUND, without=("timeline",))


def test_written_drawings_are_those_of_the_report(document: Document, tmp_path: Path) -> None:
    folder, stored = tmp_path / "drawn", Drawings()
    folder.mkdir()
    drawings.write_drawings(document, folder)
    drawings.read_drawings(document, folder, stored)
    shown = drawings.charts_of(document)
    assert len(shown) > 3
    for theme in (LIGHT, DARK):
        written = json.loads((folder / f"{theme.name}.json").read_text(encoding="utf-8"))
        assert [stored.drawing(chart, theme).stamp for chart in shown] == [stamp for _, stamp, _ in written]
    ground = {json.loads(stored.drawing(shown[0], theme).item)["doc"]["roots"][0]["id"] for theme in (LIGHT, DARK)}
    assert len(ground) == 2
