"""Exported ranges: they nest on every lane for any recording, and keep their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tiny
from hypothesis import given
from hypothesis import strategies as st

from usp_prof import open_run
from usp_prof.contract import Manifest
from usp_prof.export.chrome import nesting_lanes
from usp_prof.export.merged_trace import export
from usp_prof.model.selection import EVERYTHING

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

RECORDED = Path(__file__).resolve().parents[2] / "traces" / "gpu-nccl-pp2"
RANGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 25)), min_size=1, max_size=60)


@given(RANGES)
def test_ranges_of_one_lane_never_cross(ranges: list[tuple[int, int, int]]) -> None:
    track, start, length = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    lanes = nesting_lanes(track, start, length)
    for a, (track_a, start_a, length_a) in enumerate(ranges):
        for b, (track_b, start_b, length_b) in enumerate(ranges):
            if track_a == track_b and lanes[a] == lanes[b] and start_a < start_b < start_a + length_a:
                assert start_b + length_b <= start_a + length_a


def test_nested_ranges_stay_on_their_thread() -> None:
    start, length = np.array([0, 1, 2, 10]), np.array([10, 5, 2, 3])
    assert nesting_lanes(np.zeros(4, np.int64), start, length).tolist() == [0, 0, 0, 0]


def test_crossing_ranges_get_their_own_lane() -> None:
    start, length = np.array([0, 5, 12]), np.array([10, 10, 1])
    assert nesting_lanes(np.zeros(3, np.int64), start, length).tolist() == [0, 1, 0]


def three_ranks(folder: Path, name: str) -> TableSet:
    """Return two ranks with an op of that name, the first with another after 5 ms, and a third without events."""
    traces = {rank: tiny.Trace(rank, 3).group("1", [0, 1], "mesh_tp").op(name, at=100, dur=500) for rank in (0, 1)}
    traces[0].op("late", at=5_000_000, dur=500)
    traces[2] = tiny.Trace(2, 3)
    place = tiny.write(traces, folder / "run", Manifest(name="told", mesh={"dp": 1, "tp": 2}))
    return open_run(place, cache_dir=folder / "cache").tables


def test_ranks_without_events_are_written(tmp_path: Path) -> None:
    tables = three_ranks(tmp_path, "op")
    for low, high, ranks in ((0, 1_000, {0, 1}), (4_000_000, 6_000_000, {0}), (2_000_000, 3_000_000, set())):
        export(tables, tmp_path / "out.json", EVERYTHING, window_ns=(low, high))
        events = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["traceEvents"]
        assert {event["pid"] // 1000 - 1 for event in events if event["ph"] == "X"} == ranks


def test_names_are_written_unchanged(tmp_path: Path) -> None:
    """Perfetto shows the escapes of process names as escapes."""
    name = 'größe \u05e9\u05dc "quoted" \\ <b>'
    export(three_ranks(tmp_path, name), tmp_path / "out.json", EVERYTHING)
    written = (tmp_path / "out.json").read_text(encoding="utf-8")
    events = json.loads(written)["traceEvents"]
    assert name in {event["name"] for event in events}
    assert "größe" in written
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"rank 0: 1", "rank 1: 1"}


def test_a_thread_without_a_name_is_not_named(tmp_path: Path) -> None:
    """Kineto writes the end of its window on a thread without a name; Perfetto counts an empty name as an error."""
    export(open_run(RECORDED).tables, tmp_path / "out.json", EVERYTHING)
    events = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["traceEvents"]
    assert "Record Window End" in {event["name"] for event in events}
    assert all(event["args"]["name"] for event in events if event["name"] == "thread_name")
