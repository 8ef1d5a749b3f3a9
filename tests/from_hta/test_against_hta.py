"""Every method compared with HTA itself, on a run for which HTA is correct: the same columns and figures.

Runs in the environment that `scripts/test --all` creates for HTA (it needs `pandas<3`, we do not); skipped elsewhere.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hta_runs import write
from pandas.testing import assert_frame_equal

from usp_prof.extras.hta.trace_analysis import NOT_HERE
from usp_prof.hta import DeviceType, TraceAnalysis, TraceDiff

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

pytestmark = [
    pytest.mark.skipif(find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, TraceAnalysis]:
    from hta.trace_analysis import TraceAnalysis as Theirs  # noqa: PLC0415 - it is not installed in the usual environment

    folder: Path = write(tmp_path_factory.mktemp("run"))
    files = {rank: str(folder / f"rank{rank}.json.gz") for rank in (0, 1)}
    return Theirs(trace_files=files, trace_dir=""), TraceAnalysis(trace_files=files)


def same(theirs: pd.DataFrame, ours: pd.DataFrame, keys: list[str]) -> None:
    """Compare as floats, rows in the order of the keys."""
    frames = [frame.reset_index(drop=True).sort_values(keys, ignore_index=True) for frame in (theirs, ours)]
    for frame in frames:
        numbers = frame.select_dtypes("number").columns
        frame[numbers] = frame[numbers].astype(float)
    assert_frame_equal(*frames, check_dtype=False)


def test_every_method_of_hta_exists_or_is_listed_as_missing(pair: tuple[Any, TraceAnalysis]) -> None:
    """Two parameters are missing: another method to find stragglers, and shortened names in trace diffs."""
    theirs, ours = (type(implementation) for implementation in pair)
    methods = {name for name, value in vars(theirs).items() if callable(value) and not name.startswith("_")}
    assert methods - set(vars(ours)) == set(NOT_HERE)
    for name in methods & set(vars(ours)):
        parameters = [
            list(inspect.signature(getattr(implementation, name)).parameters) for implementation in (theirs, ours)
        ]
        theirs_alone, ours_alone = {"straggler_identification_impl"}, {"with_hta"}
        common = [
            [parameter for parameter in names if parameter not in theirs_alone | ours_alone] for names in parameters
        ]
        assert common[0] == common[1], name


def test_profiler_steps_equal_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = pair
    assert ours.get_profiler_steps() == [int(step) for step in theirs.get_profiler_steps()] == [1, 2]


@pytest.mark.parametrize("method", ["get_temporal_breakdown", "get_comm_comp_overlap"])
def test_breakdown_and_overlap_equal_hta(pair: tuple[Any, TraceAnalysis], method: str) -> None:
    theirs, ours = (getattr(implementation, method)(visualize=False) for implementation in pair)
    same(theirs, ours, ["rank"])


@pytest.mark.parametrize("memory", [True, False])
def test_kernel_breakdown_equals_hta(pair: tuple[Any, TraceAnalysis], memory: bool) -> None:
    theirs, ours = (x.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=memory) for x in pair)
    same(theirs[0], ours[0], ["kernel_type"])
    same(theirs[1], ours[1], ["name", "rank"])


def test_idle_time_breakdown_equals_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = (x.get_idle_time_breakdown(visualize=False, show_idle_interval_stats=True) for x in pair)
    same(theirs[0], ours[0], ["stream", "idle_category"])
    same(theirs[1].reset_index(), ours[1].reset_index(), ["stream", "idle_category"])


def test_potential_stragglers_equal_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = (x.get_potential_stragglers(num_candidates=1) for x in pair)
    assert ours == [int(rank) for rank in theirs] == [1]


def test_queue_length_equals_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = (x.get_queue_length_time_series(ranks=[0, 1]) for x in pair)
    for rank in (0, 1):
        same(theirs[rank].reset_index(), ours[rank].reset_index(), ["stream", "ts"])
    summaries = [x.get_queue_length_summary(ranks=[0, 1]) for x in pair]
    assert_frame_equal(*summaries, check_dtype=False, check_index_type=False)


def test_time_blocked_on_a_full_queue_equals_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = (x.get_time_spent_blocked_on_full_queue(x.get_queue_length_time_series(), 1) for x in pair)
    last = ours[ours["stream"] == 20]  # HTA keeps only the last stream
    shared = ["rank", "stream", "duration_at_max_queue_length"]  # HTA's trace ends when its last event begins
    same(theirs[shared], last[shared], ["rank"])


def test_memory_bandwidth_equals_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = (x.get_memory_bw_time_series() for x in pair)
    same(theirs[0], ours[0], ["ts"])
    summaries = [x.get_memory_bw_summary() for x in pair]
    assert_frame_equal(*summaries, check_dtype=False, check_index_type=False)


@pytest.mark.parametrize("memory", [True, False])
def test_launch_statistics_equal_hta(pair: tuple[Any, TraceAnalysis], memory: bool) -> None:
    theirs, ours = (x.get_cuda_kernel_launch_stats(include_memory_events=memory, visualize=False)[0] for x in pair)
    same(theirs, ours, ["correlation"])


def test_kernels_of_aten_ops_equal_hta(pair: tuple[Any, TraceAnalysis], monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.graph_objects as go  # noqa: PLC0415 - HTA shows a figure whether one wants it or not

    monkeypatch.setattr(go.Figure, "show", lambda *_, **__: None)
    theirs, ours = (x.get_aten_op_kernels_and_delay()[0] for x in pair)
    same(theirs, ours[ours["aten_op_name"] != "aten::copy_"], ["aten_op_name"])  # HTA does not know copies' launches


def test_user_annotations_equal_hta(pair: tuple[Any, TraceAnalysis]) -> None:
    theirs, ours = (x.get_gpu_user_annotation_breakdown(visualize=False) for x in pair)
    same(theirs, ours, ["rank", "name"])
    theirs, ours = (x.get_gpu_kernels_with_user_annotations(0, shortern_names=False) for x in pair)
    shared = [
        "index",
        "ts",
        "dur",
        "end",
        "stream",
        "correlation",
        "bytes",
        "pid",
        "tid",
        "s_name",
        "s_user_annotation",
    ]
    same(theirs[shared].replace({np.nan: ""}), ours[shared], ["index"])


def test_the_critical_path_returns_a_path_and_a_flag(pair: tuple[Any, TraceAnalysis]) -> None:
    (theirs, is_complete), (ours, is_complete_too) = (x.critical_path_analysis(0, "ProfilerStep", 0) for x in pair)
    assert is_complete
    assert is_complete_too
    kinds = {"cpu_bound", "gpu_compute_bound", "gpu_communication_bound", "gpu_kernel_kernel_overhead"}
    assert set(ours.summary().index) <= kinds | set(theirs.summary().index)
    assert ours.summary().sum() == pytest.approx(theirs.summary().sum()) == pytest.approx(100)
    assert {"duration", "bound_by"} <= set(ours.get_critical_path_breakdown()) & set(
        theirs.get_critical_path_breakdown()
    )


@pytest.mark.parametrize("device", [DeviceType.ALL, DeviceType.CPU, DeviceType.GPU])
def test_trace_diff_equals_hta(pair: tuple[Any, TraceAnalysis], device: DeviceType) -> None:
    from hta import trace_diff  # noqa: PLC0415 - as above

    theirs_run, ours_run = pair
    kind = trace_diff.DeviceType[device.name]
    theirs = trace_diff.TraceDiff.compare_traces(theirs_run.t, theirs_run.t, 0, 1, 1, 2, device_type=kind)
    ours = TraceDiff.compare_traces(ours_run, ours_run, 0, 1, 1, 2, device_type=device)
    marks = ["forward", "inner"]  # device annotations, which HTA counts as host work
    same(
        theirs.drop(marks, errors="ignore").reset_index(),
        ours.drop(marks, errors="ignore").reset_index().rename(columns={"index": "name"}),
        ["name"],
    )
    differences = trace_diff.TraceDiff.ops_diff(theirs_run.t, theirs_run.t, 0, 1, 1, 2)
    assert {kind: sorted(names) for kind, names in differences.items()} == TraceDiff.ops_diff(
        ours_run, ours_run, 0, 1, 1, 2
    )
