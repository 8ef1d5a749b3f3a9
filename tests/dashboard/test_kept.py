"""A report is read back as it was kept, and a file that names anything foreign is refused."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dashboard import kept
from usp_prof import UspProfError, open_run
from usp_prof.charts.inputs import HeatMap
from usp_prof.report.build import analyse, build
from usp_prof.report.document import Chart, DataTable, Section, TableColumn

if TYPE_CHECKING:
    from pathlib import Path


def test_a_report_comes_back_as_it_was(run_folder: Path, tmp_path: Path) -> None:
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    document = build(run.tables, analyse(run.tables), name=run.name, without=("timeline",))
    assert "timeline" not in {section.id for section in document.sections}
    kept.write(document, tmp_path)
    again = kept.read(tmp_path)
    assert again.values == document.values
    assert again.findings == document.findings
    assert again.health == document.health
    assert [section.id for section in again.sections] == [section.id for section in document.sections]


def test_views_and_single_numbers_come_back_too(run_folder: Path, tmp_path: Path) -> None:
    """A run of many ranks draws parts of larger arrays."""
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    values = np.arange(24.0).reshape(4, 6).T[::2]
    part = Section(
        "views",
        "Views",
        (
            Chart("", HeatMap("compute", (0, 1, 2), (3, 4, 5, 6), values)),
            DataTable(
                "", (TableColumn("n"),), ((np.float64(1.5),), (np.int64(7),), (np.bool_(True),), (np.str_("x"),))
            ),
        ),
    )
    document = build(run.tables, {}, name=run.name, findings=())
    kept.write(replace(document, sections=(part,)), tmp_path)
    chart, table = kept.read(tmp_path).sections[0].blocks
    assert isinstance(chart, Chart)
    assert isinstance(chart.data, HeatMap)
    assert isinstance(table, DataTable)
    assert np.array_equal(chart.data.values_ns, values)
    assert table.rows == ((1.5,), (7,), (True,), ("x",))


class _Command:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("true",))


@pytest.mark.parametrize("what", [_Command(), os.system, {"a": 1}, kept.Document])
def test_a_file_with_anything_else_is_refused(what: object, tmp_path: Path) -> None:
    (tmp_path / kept.FILE).write_bytes(pickle.dumps(what))
    with pytest.raises(UspProfError):
        kept.read(tmp_path)


def test_the_form_names_the_version() -> None:
    assert kept.form().startswith("document-")
    assert kept.form() == kept.form()
