"""Stored reports: read back unchanged; other contents are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from chart_samples import SAMPLES
from golden_reports import ROOT

from usp_prof import UspProfError, open_run
from usp_prof.charts.inputs import HeatMap
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.report import stored_document
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Chart, DataTable, Section, TableColumn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def run_folder() -> Path:
    return ROOT / "traces" / "recorded-1f1b"


def test_a_stored_report_is_read_back_unchanged(run_folder: Path, tmp_path: Path) -> None:
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    document = build(run.tables, analyze(run.tables), name=run.name, without=("timeline",))
    stored_document.write(document, tmp_path)
    again = stored_document.read(tmp_path)
    assert again.values == document.values
    assert again.findings == document.findings
    assert again.health == document.health
    assert again.run == document.run
    plain = [block for section in document.sections for block in section.blocks if not isinstance(block, Chart)]
    assert [block for section in again.sections for block in section.blocks if not isinstance(block, Chart)] == plain


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_kind_of_chart_is_stored(sample: Any, run_folder: Path, tmp_path: Path) -> None:
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    part = Section("chart", "Chart", (Chart("A chart", sample),))
    stored_document.write(
        replace(build(run.tables, {}, name=run.name, search_result=NOTHING_FOUND), sections=(part,)), tmp_path
    )
    (again,) = stored_document.read(tmp_path).sections[0].blocks
    assert isinstance(again, Chart)
    assert repr(again.data) == repr(sample)


def test_views_unknown_and_single_numbers_are_stored(run_folder: Path, tmp_path: Path) -> None:
    """A run of many ranks draws parts of larger arrays."""
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    values = np.arange(24.0).reshape(4, 6).T[::2].copy()
    values[0, 0] = np.nan
    rows = ((np.float64(1.5),), (np.int64(7),), (np.bool_(True),), (np.str_("x"),), (None,), (float("inf"),))
    part = Section(
        "views",
        "Views",
        (
            Chart("", HeatMap("compute", (0, 1, 2), (3, 4, 5, 6), values.T.T)),
            DataTable("", (TableColumn("n"),), rows),
        ),
    )
    document = build(run.tables, {}, name=run.name, search_result=NOTHING_FOUND)
    stored_document.write(replace(document, sections=(part,)), tmp_path)
    chart, table = stored_document.read(tmp_path).sections[0].blocks
    assert isinstance(chart, Chart)
    assert isinstance(chart.data, HeatMap)
    assert isinstance(table, DataTable)
    assert np.array_equal(chart.data.values_ns, values, equal_nan=True)
    assert table.rows == ((1.5,), (7,), (True,), ("x",), (None,), (float("inf"),))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"\x80", *map(msgspec.msgpack.encode, ([["class", "Document", []], ["class", "os", []]], 7, ["x"]))],
)
def test_a_file_without_a_report_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / stored_document.FILE).write_bytes(content)
    with pytest.raises(UspProfError, match="contains no report"):
        stored_document.read(tmp_path)


def test_objects_outside_of_a_report_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not part of a report"):
        stored_document.write(object(), tmp_path)  # type: ignore[arg-type]
