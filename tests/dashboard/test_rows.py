"""Timeline overlays, rows of calls, contents of a selection, and the order of ranks, on a recorded run."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from dashboard import routes
from dashboard.components import findings
from dashboard.timeline.area import by_kind, contents
from dashboard.timeline.calls import open_calls, prepare_calls
from usp_prof import open_run
from usp_prof.analyses import critical_path
from usp_prof.analyses.measures import partition
from usp_prof.columns.intervals import union_of
from usp_prof.report.build import analyze, build
from usp_prof.tables import calls
from usp_prof.timeline import overlays
from usp_prof.timeline.rows import CATEGORIES, direction_of
from usp_prof.timeline.store import TimelineStore, load, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


@pytest.fixture(scope="module")
def tables(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TableSet:
    return open_run(run_folder, cache_dir=tmp_path_factory.mktemp("cache")).tables


@pytest.fixture(scope="module")
def store(tables: TableSet, tmp_path_factory: pytest.TempPathFactory) -> TimelineStore:
    folder, over = tmp_path_factory.mktemp("timeline"), tmp_path_factory.mktemp("over")
    prepare(tables, folder)
    overlays.prepare(tables, over)
    return load(folder, tables.ranks, over)


def total(store: TimelineStore, rank: int, kind: str) -> float:
    rows = [(rank, place) for place, row in enumerate(store.rows(rank)) if row.kind == kind]
    return float(store.view(rows, -(10**12), 10**12, 0.0).rest["dur"].sum())


def test_exposed_rows_contain_exposed_communication(tables: TableSet, store: TimelineStore) -> None:
    for rank in tables.ranks:
        sets = partition.sets_of(tables, rank)
        # The three parts of an axis add up to its communication.
        shown = total(store, rank, "exposed") + total(store, rank, "contended")
        hidden = sum(sets.hidden(axis).length for axis in sets.axes)
        assert shown + hidden == pytest.approx(sum(comm.length for comm in sets.axes.values()), rel=1e-6)
        without_compute = (union_of(list(sets.axes.values())) - sets.compute).length
        assert total(store, rank, "exposed") == pytest.approx(without_compute, rel=1e-6)


def test_action_rows_contain_every_action(tables: TableSet, store: TimelineStore) -> None:
    for rank in tables.ranks:
        rows = [(rank, place) for place, row in enumerate(store.rows(rank)) if row.kind == "actions"]
        view = store.view(rows, -(10**12), 10**12, 0.0)
        assert len(view.start) == len(tables.columns("actions", rank)["event"])
        assert {CATEGORIES[number] for number in view.rest["category"]} == {"F", "B"}


def test_the_critical_path_is_drawn_on_its_ranks(tables: TableSet, store: TimelineStore) -> None:
    length = sum(piece.end_ns - piece.begin_ns for piece in critical_path.compute(tables).pieces)
    assert sum(total(store, rank, "path") for rank in tables.ranks) == pytest.approx(length, rel=1e-6)


def test_each_call_is_a_wait_and_a_transfer(tables: TableSet, tmp_path: Path) -> None:
    prepare_calls(tables, tmp_path)
    lines = open_calls(tmp_path)
    table = calls.match_calls(tables).columns()
    rows = [(number, place) for number, line in lines.ranks.items() for place in range(len(line.rows))]
    view = lines.view(rows, -(10**12), 10**12, 0.0)
    assert view.rest["dur"].sum() == pytest.approx(float((table["end_ns"] - table["first_ns"]).sum()), rel=1e-6)
    assert set(lines.labels) == set(lines.ranks)
    assert any(label.startswith("world") for label in lines.labels.values())
    assert all("0,1,2" not in label for label in lines.labels.values())


def test_a_selection_lists_only_slices_inside_it(store: TimelineStore) -> None:
    half = store.span_ns // 2
    rows = {
        rank: [number for number, row in enumerate(line.rows) if row.kind == "device"]
        for rank, line in store.ranks.items()
    }
    listed_rows = contents(store, rows, 0, store.span_ns)
    parts = [contents(store, rows, *part) for part in ((0, half), (half, store.span_ns))]
    inside = [sum(row[4] for row in part.rows) for part in parts]
    assert sum(inside) == sum(row[4] for row in listed_rows.rows) > 0
    assert max(row[3] for row in listed_rows.rows) == len(store.ranks)
    assert not contents(store, {}, 0, half).rows
    kinds = by_kind(listed_rows)
    assert not [row for row in kinds.rows if str(row[0]).startswith("exposed")], "no row of that kind was chosen"
    over = {0: [number for number, row in enumerate(store.rows(0)) if row.kind in ("device", "exposed")]}
    apart = {str(row[0]): int(row[2]) for row in by_kind(contents(store, over, 0, store.span_ns)).rows}
    exposed = {kind for kind in apart if kind.startswith("exposed ")}
    assert exposed
    assert all(apart[kind] <= apart[kind.removeprefix("exposed ")] for kind in exposed)
    assert sum(int(row[2]) for row in kinds.rows) == sum(int(row[4]) for row in listed_rows.rows)


def test_rows_are_named_after_their_work(store: TimelineStore) -> None:
    for line in store.ranks.values():
        tracks = [row.track for row in line.rows if row.kind == "device" and not row.depth]
        assert tracks[0] == "compute"
        assert len(set(tracks)) == len(tracks)
        assert all(track.split()[0] in CATEGORIES for track in tracks)
        assert all(row.lane for row in line.rows)


def test_a_stream_of_kernels_is_named_compute_even_if_a_collective_takes_longest(
    run_folder: Path, tmp_path: Path
) -> None:
    """Rank 1 had no row of compute, so its folded row was empty."""
    tables = open_run(run_folder.with_name("gpu-nccl-pp2"), cache_dir=tmp_path / "cache").tables
    prepare(tables, tmp_path / "timeline")
    store = load(tmp_path / "timeline", tables.ranks, None)
    for rank in tables.ranks:
        assert [row.lane for row in store.rows(rank) if row.track == "compute"] == ["stream 7"]


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (["gloo:send"], "pp send"),
        (["nccl:recv 0<-1"], "pp recv"),
        (["gloo:send", "gloo:recv"], "pp"),
        (["ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)"], "pp"),
        (["ncclKernel_AllReduce"], "pp"),
    ],
)
def test_a_pipeline_lane_names_its_direction(names: list[str], called: str) -> None:
    assert direction_of(names) == called


def test_a_range_is_exported_for_perfetto(tables: TableSet, store: TimelineStore) -> None:
    packed = routes.packed_trace(tables, store, (0, 1), 0, store.span_ns // 4)
    trace = json.loads(gzip.decompress(packed))
    assert {event["pid"] // 1000 for event in trace["traceEvents"] if event["ph"] == "X"} == {1, 2}


def test_outliers_come_first(run_folder: Path, tmp_path: Path) -> None:
    run = open_run(run_folder.with_name("recorded-slow-rank"), cache_dir=tmp_path)
    document = build(run.tables, analyze(run.tables), name=run.name, without=("timeline",))
    assert findings.outlier_ranks(document)[0] == 2
    assert findings.outliers_first(document, run.ranks)[0] == 2
    assert sorted(findings.outliers_first(document, run.ranks)) == list(run.ranks)
