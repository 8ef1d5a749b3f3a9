"""Calls of an op clicked on the roofline: its kernels add up to the report's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboard.answers.pictures import of_kernels
from dashboard.components.picked_op import calls_of_op
from usp_prof import open_run
from usp_prof.analyses import kernels
from usp_prof.api.sentences import time_of_ops
from usp_prof.charts.inputs import RankBars
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report.build import build

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


@pytest.fixture(scope="module")
def tables(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TableSet:
    folder = run_folder.with_name("recorded-zero3-prefetch")
    return open_run(folder, cache_dir=tmp_path_factory.mktemp("cache")).tables


def test_an_ops_kernels_take_as_long_as_the_report_says(tables: TableSet) -> None:
    op = next(op for op in kernels.compute(tables).ops if op.family and op.dims)
    calls = calls_of_op(tables, EVERYTHING, f"{op.name} {op.dims}")
    assert calls is not None
    assert sum(int(row[2] or 0) for row in calls.kernels.rows) == op.time_ns


def test_the_longest_calls_of_an_op_are_events_of_the_trace(tables: TableSet) -> None:
    op = next(op for op in kernels.compute(tables).ops if op.family)
    calls = calls_of_op(tables, EVERYTHING, op.name)
    assert calls is not None
    for call in calls.longest:
        activities = tables.columns("activities", call.rank)
        at = int((activities["event"] == call.event).nonzero()[0][0])
        assert int(activities["dur_ns"][at]) == call.dur_ns
    durations = [call.dur_ns for call in calls.longest]
    assert durations == sorted(durations, reverse=True)


def test_only_selected_ranks_count(tables: TableSet) -> None:
    op = next(op for op in kernels.compute(tables).ops if op.family)
    calls = calls_of_op(tables, Selection(ranks=(1,)), op.name)
    assert calls is not None
    assert [call.rank for call in calls.longest] == [1]


def test_an_unknown_op_has_no_calls(tables: TableSet) -> None:
    assert calls_of_op(tables, EVERYTHING, "no such op") is None


def test_a_bar_is_as_long_as_all_calls_of_its_op(tables: TableSet) -> None:
    chart, *_ = of_kernels(build(tables, {}, name="run"), time_of_ops(kernels.compute(tables).ops))
    assert isinstance(chart.data, RankBars)
    bars = dict(zip(chart.data.labels, chart.data.values, strict=True))
    op = chart.data.labels[0]
    calls = calls_of_op(tables, EVERYTHING, op)
    assert calls is not None
    assert sum(int(row[2] or 0) for row in calls.kernels.rows) == bars[op]
