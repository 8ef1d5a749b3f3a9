"""Promised metrics: a report has each with every dimension, and parts add up on each level.

Scripts and gates use these ids: a missing one is a broken promise.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tiny import Trace, table_set

from usp_prof.analyses import NAMES
from usp_prof.extras.synth.declaration import Clocks, Declaration, Mesh, Work
from usp_prof.extras.synth.write import write
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.report.build import analyze, build
from usp_prof.report.writers import json_text
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

Dims = frozenset[str]
CELLS: set[Dims] = {frozenset(), frozenset({"rank"}), frozenset({"rank", "step"})}


def each_with(dim: str) -> set[Dims]:
    return CELLS | {dims | {dim} for dims in CELLS}


def these(*names: str) -> set[Dims]:
    return {frozenset(name.split()) for name in names}


PROMISED: Mapping[str, set[Dims]] = {
    "step_time": CELLS,
    "compute_time": CELLS,
    "memcpy_time": CELLS,
    "exposed_comm_time": each_with("axis"),
    "idle_time": each_with("cause"),
    "comm_time": each_with("axis"),
    "hidden_comm_time": each_with("axis"),
    "contended_comm_time": these("axis", "axis rank", "axis rank step"),
    "overlap_fraction": each_with("axis"),
    "wait_time": each_with("axis"),
    "transfer_time": each_with("axis"),
    "bubble_fraction": these("", "rank", "step"),
    "bubble_ideal_fraction": these(""),
    "bubble_textbook_fraction": these(""),
    "algbw": these("", "axis collective"),
    "busbw": these("", "axis collective"),
    "mfu": these("", "step"),
    "hfu": these(""),
    "tokens_per_second": these(""),
    "kernel_efficiency": these("", "family", "step"),
    "slowdown": these("", "rank"),
    "job_slowdown": these(""),
    "own_time_slowdown": these("", "step"),
    "clock_offset": these("", "rank"),
    "clock_residual": these("", "rank"),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> TableSet:
    folder: Path = tmp_path_factory.mktemp("promised")
    run = Declaration(
        mesh=Mesh(dp=2, tp=2, pp=2),
        work=Work(steps=2, schedule="1F1B", micro_batches=4),
        clocks=Clocks(ranks_per_host=2, offset_ns=(0, 3_000_000)),
    )
    write(run, folder / "run", described=True)
    return open_run(folder / "run", cache_dir=folder / "cache").tables


@pytest.fixture(scope="module")
def metrics(tables: TableSet) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(json_text.write(build(tables, analyze(tables), name="run")))["metrics"]
    return rows


@pytest.mark.parametrize("name", list(PROMISED))
def test_a_promised_metric_has_its_dimensions(name: str, metrics: list[dict[str, Any]]) -> None:
    dimensions = {frozenset(metric["dims"]) for metric in metrics if metric["id"] == name}
    assert PROMISED[name] <= dimensions


def test_peak_memory_is_reported_if_it_was_recorded() -> None:
    trace = Trace().step(1, 0, 10_000).kernel("gemm", 100, 500, launch_at=10).memory(1_000, 300, 700)
    made = table_set(trace)
    document = build(made, analyze(made), name="run", search_result=NOTHING_FOUND)
    peaks = [(v.value, dict(v.dims)) for v in document.values if v.metric.id == "peak_memory"]
    assert peaks == [(700, {}), (700, {"rank": 0})]


def test_the_parts_add_up_in_every_cell_for_every_rank_and_as_a_whole(metrics: list[dict[str, Any]]) -> None:
    step_ns_by_place: dict[tuple[Any, ...], float] = {}
    sums: dict[tuple[Any, ...], float] = defaultdict(float)
    parts = {"compute_time": "", "memcpy_time": "", "exposed_comm_time": "axis", "idle_time": "cause"}
    for metric in metrics:
        dims = metric["dims"]
        place = (dims.get("rank"), dims.get("step"))
        if metric["id"] == "step_time":
            step_ns_by_place[place] = metric["value"]
        elif metric["id"] in parts and (parts[metric["id"]] in dims or not parts[metric["id"]]):
            sums[place] += metric["value"]
    assert {(None, None), (0, None), (7, None), (0, 10), (7, 11)} <= set(step_ns_by_place)
    for place, value in step_ns_by_place.items():
        if place[1] is not None:
            assert sums[place] == value, place
        assert sums[place] == pytest.approx(value, rel=1e-12), place


def test_every_analysis_returns_a_frame_and_its_declared_metrics(tables: TableSet) -> None:
    import pandas as pd  # noqa: PLC0415 - only here

    results = analyze(tables)
    assert set(results) == set(NAMES)
    for name, result in results.items():
        assert isinstance(result.to_pandas(), pd.DataFrame), name
        assert all(set(value.dims) <= set(value.metric.dims) for value in result.values()), name
