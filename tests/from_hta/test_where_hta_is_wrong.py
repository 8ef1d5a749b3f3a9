"""Known answers for defects of HTA 0.5: each test is a difference listed in docs/reference/hta.md."""

from __future__ import annotations

import json
from copy import copy
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
import tiny
from hta_runs import STEP_US, US, rank, write
from tiny import Trace

from usp_prof import UspProfError
from usp_prof.hta import TraceAnalysis, TraceDiff

if TYPE_CHECKING:
    from pathlib import Path


def analysis(folder: Path, *traces: Trace) -> TraceAnalysis:
    tiny.write({trace.rank: trace for trace in traces}, folder / "run")
    return TraceAnalysis(trace_dir=folder / "run")


def one_step(**options: int) -> Trace:
    return Trace(0, 1).step(1, 0, options.get("dur", 1000 * US))


def test_nanoseconds_are_not_rounded_away(tmp_path: Path) -> None:
    trace = one_step()
    for place in range(100):
        trace.kernel("tiny", 1000 + place * 2000, 800, launch_at=place * 100)
    frame = analysis(tmp_path, trace).get_temporal_breakdown(visualize=False)
    assert frame["compute_time(us)"].item() == pytest.approx(80.0)


def test_launchers_that_name_a_stream_are_not_device_work(tmp_path: Path) -> None:
    trace = one_step().op("triton_poi_fused_add_0", 100 * US, 500 * US, args={"stream": 0})
    trace.kernel("triton_poi_fused_add_0", 200 * US, 50 * US, launch_at=150 * US)
    frame = analysis(tmp_path, trace).get_temporal_breakdown(visualize=False)
    assert frame["compute_time(us)"].item() == pytest.approx(50.0)


def test_synchronization_is_not_device_work(tmp_path: Path) -> None:
    trace = one_step().kernel("gemm", 10 * US, 90 * US, launch_at=5 * US)
    trace.kernel("gemm", 900 * US, 100 * US, launch_at=890 * US)
    trace.event("Stream Sync", "cuda_sync", 100 * US, 700 * US, pid=0, tid=7, args={"stream": 7, "device": 0})
    frame = analysis(tmp_path, trace).get_temporal_breakdown(visualize=False)
    assert frame["non_compute_time(us)"].item() == 0
    assert frame["idle_time(us)"].item() >= 800


@pytest.mark.parametrize(
    "name", ["void deep_ep::internode::dispatch<true>(...)", "multimem_all_reduce_kernel", "cross_device_reduce_1stage"]
)
def test_communication_is_not_only_nccl(tmp_path: Path, name: str) -> None:
    trace = (
        one_step().kernel("gemm", 0, 400 * US, launch_at=0).kernel(name, 200 * US, 400 * US, launch_at=10, stream=27)
    )
    made = analysis(tmp_path, trace)
    assert made.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].item() == 50.0
    by_type, _ = made.get_gpu_kernel_breakdown(visualize=False)
    assert dict(zip(by_type["kernel_type"], by_type["sum"], strict=True))["COMMUNICATION"] == 200.0


def test_combined_kernels_are_described_by_their_calls(tmp_path: Path) -> None:
    trace = one_step()
    for place in range(30):
        trace.kernel(f"kernel_{place % 15}", place * 20 * US, (place % 15 + 1) * US, launch_at=place)
    _, by_name = analysis(tmp_path, trace).get_gpu_kernel_breakdown(visualize=False, num_kernels=10)
    most = by_name[by_name["name"] == "kernel_14"].iloc[0]
    assert (most["mean (us)"], most["max (us)"], most["sum (us)"]) == (15.0, 15.0, 30.0)
    combined = by_name[by_name["name"] == "others"].iloc[0]
    assert combined["max (us)"] < 15.0


def test_waiting_before_the_first_kernel_is_idle_time(tmp_path: Path) -> None:
    late = Trace(1, 2).group("1", [0, 1], "mesh_pp")
    early = Trace(0, 2).group("1", [0, 1], "mesh_pp")
    for place, step in enumerate((1, 2)):
        at = place * 1000 * US
        for trace, begin in ((early, 0), (late, 600)):
            trace.step(step, at, 1000 * US).kernel("gemm", at + begin * US, 400 * US, launch_at=at)
    frame = analysis(tmp_path, early, late).get_temporal_breakdown(visualize=False)
    assert frame["kernel_time(us)"].tolist() == [1000.0, 1000.0]
    assert frame["idle_time_pctg"].tolist() == [60.0, 60.0]


def test_every_full_stream_has_a_row_and_each_rank_its_own_ops(tmp_path: Path) -> None:
    made = TraceAnalysis(trace_dir=write(tmp_path / "run"))
    full = made.get_time_spent_blocked_on_full_queue(made.get_queue_length_time_series(), 1)
    assert full["stream"].tolist() == [7, 9, 20]
    ops = made.get_aten_op_kernels_and_delay(ranks=[0, 1])
    assert ops[0]["occurrence_count"].tolist() == ops[1]["occurrence_count"].tolist() == [2, 2]


def test_bandwidth_is_weighted_by_time(tmp_path: Path) -> None:
    trace = one_step(dur=2000 * US).memcpy(10 * US, 1 * US, size=1_000_000, launch_at=0, stream=9)
    trace.memcpy(20 * US, 999 * US, size=9_990_000, launch_at=1, stream=9)
    frame = analysis(tmp_path, trace).get_memory_bw_summary()
    assert frame is not None
    assert frame[("memory_bw_gbps", "mean")].item() == pytest.approx((1000 * 1 + 10 * 999) / 1000)
    assert frame[("memory_bw_gbps", "50%")].item() == pytest.approx(10.0)


@pytest.mark.parametrize("call", ["cuLaunchKernelEx", "hipExtModuleLaunchKernel", "cudaGraphLaunch"])
def test_every_kind_of_launch_is_counted(tmp_path: Path, call: str) -> None:
    trace = one_step().launch(1, 10 * US, 5 * US, name=call).kernel("gemm", 100 * US, 50 * US, correlation=1)
    frame = analysis(tmp_path, trace).get_cuda_kernel_launch_stats(visualize=False)[0]
    assert frame[["cpu_duration", "gpu_duration", "launch_delay"]].to_numpy().tolist() == [[5.0, 50.0, 85.0]]


def test_unaligned_clocks_have_no_straggler(tmp_path: Path) -> None:
    traces = [Trace(rank, 2, base=tiny.BASE + rank * 5_000_000).group("1", [0, 1], "mesh_dp") for rank in (0, 1)]
    for trace in traces:
        for step in (1, 2, 3):
            at = step * 1000 * US
            trace.step(step, at, 1000 * US).kernel("gemm", at, 300 * US, launch_at=at)
            trace.collective("all_reduce", at + 400 * US, 500 * US, group="1", launch_at=at + 50, sequence=step)
    assert analysis(tmp_path, *traces).get_potential_stragglers() == []


def test_gloo_traces_are_supported(tmp_path: Path) -> None:
    trace = Trace(0, 2, device="cpu").group("1", [0, 1], "mesh_dp").step(1, 0, 1000 * US).op("aten::mm", 0, 400 * US)
    trace.gloo("all_reduce", 300 * US, 200 * US, posted_at=290 * US, group="1", sequence=1)
    made = analysis(tmp_path, trace)
    assert made.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].item() == pytest.approx(50, abs=10.1)
    assert made.get_queue_length_time_series() == {}
    assert made.get_queue_length_summary() is None
    assert made.get_memory_bw_summary() is None
    assert made.get_gpu_kernels_with_user_annotations(0) is None
    assert made.get_gpu_user_annotation_breakdown(visualize=False) is None


def test_without_steps_the_whole_trace_is_analyzed(tmp_path: Path) -> None:
    trace = Trace(0, 1).kernel("gemm", 0, 300 * US, launch_at=0).kernel("gemm", 700 * US, 300 * US, launch_at=5)
    made = analysis(tmp_path, trace)
    assert made.get_profiler_steps() == []
    frame = made.get_temporal_breakdown(visualize=False)
    assert (frame["kernel_time(us)"].item(), frame["idle_time_pctg"].item()) == (1000.0, 40.0)
    with pytest.raises(UspProfError, match="no step"):
        TraceDiff.compare_traces(made, made)


def test_the_last_step_is_excluded_unless_requested(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    assert TraceAnalysis(trace_dir=folder).get_profiler_steps() == [1, 2]
    assert TraceAnalysis(trace_dir=folder, include_last_profiler_step=True).get_profiler_steps() == [1, 2, 3]


def test_files_are_opened_as_hta_names_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    names = [path.name for path in sorted(folder.glob("rank*"))]
    assert TraceAnalysis(trace_files=names, trace_dir=folder).window.ranks == (0, 1)
    assert TraceAnalysis(trace_files={1: str(folder / names[1])}).window.ranks == (1,)
    (tmp_path / "other").mkdir()
    with pytest.raises(UspProfError, match="several folders"):
        TraceAnalysis(trace_files=[str(folder / names[0]), str(tmp_path / "other" / "rank1.json.gz")])
    with pytest.raises(UspProfError, match="do not belong to run"):
        TraceAnalysis(trace_files=[*names, "nothing.json"], trace_dir=folder)


def test_wrong_ranks_steps_and_annotations_are_refused(tmp_path: Path) -> None:
    made = TraceAnalysis(trace_dir=write(tmp_path / "run"))
    with pytest.raises(UspProfError, match="no rank"):
        made.get_queue_length_time_series(ranks=[7])
    with pytest.raises(UspProfError, match="only steps"):
        made.critical_path_analysis(0, "forward")
    with pytest.raises(UspProfError, match="no step"):
        made.critical_path_analysis(0, "ProfilerStep", 9)
    with pytest.raises(UspProfError, match=r"no rank \[7\]"):
        TraceDiff.compare_traces(made, made, control_rank=7)


def test_a_diff_counts_events_shorter_than_a_microsecond(tmp_path: Path) -> None:
    """HTA rounds starts up and ends down, so each such event reduces the sum of its name by 1 us, even below zero."""
    made = rank(0)
    for place in range(3):
        made.op("aten::size", (10_100 + place) * US + 300, 400)
    frame = TraceDiff.compare_traces(*[TraceAnalysis(trace_dir=tiny.write({0: made}, tmp_path / "run", None))] * 2)
    assert frame.loc["aten::size", ["Control_counts", "Control_total_duration"]].tolist() == [3, pytest.approx(1.2)]


def test_a_critical_path_adds_up_to_its_steps(tmp_path: Path) -> None:
    """HTA's table contains only time within events; the time between them is in no row."""
    made = TraceAnalysis(trace_dir=write(tmp_path / "run"))
    for instance, steps in ((0, 1), ((0, 1), 2)):
        path, is_complete = made.critical_path_analysis(0, "ProfilerStep", instance)
        parts = path.get_critical_path_breakdown()
        assert is_complete
        assert parts is not None
        assert parts["duration"].sum() == pytest.approx(steps * STEP_US, rel=0.12)  # both ranks' steps, 100 us apart


def test_graph_calls_of_hta_name_the_switch_that_returns_its_graph(tmp_path: Path) -> None:
    made = TraceAnalysis(trace_dir=write(tmp_path / "run"))
    path, _ = made.critical_path_analysis(0, "ProfilerStep", 0)
    with pytest.raises(AttributeError, match="with_hta=True"):
        path.show_critical_path()
    assert len(copy(path).parts) == len(path.parts)
    if find_spec("hta") is None:
        with pytest.raises(UspProfError, match="not installed"):
            made.critical_path_analysis(0, "ProfilerStep", 0, with_hta=True)
    else:
        graph, is_complete = made.critical_path_analysis(0, "ProfilerStep", 0, with_hta=True)
        assert is_complete
        assert set(graph.critical_path_nodes) <= set(graph.nodes)


def test_the_graph_of_hta_needs_device_work(tmp_path: Path) -> None:
    made = analysis(tmp_path, one_step())
    with pytest.raises(UspProfError, match="rank 0 has no device work"):
        made.critical_path_analysis(0, "ProfilerStep", 0, with_hta=True)


def test_trace_files_are_not_changed(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    made = TraceAnalysis(trace_dir=folder)
    made.get_temporal_breakdown()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before} == before
    assert json.dumps(sorted(before)) == json.dumps(["rank0.json.gz", "rank1.json.gz"])


def test_a_missing_method_names_its_replacement(tmp_path: Path) -> None:
    analyzer = TraceAnalysis(trace_dir=write(tmp_path))
    with pytest.raises(AttributeError, match=r"run\.kernels\(\) lists ops"):
        analyzer.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path))
    assert not hasattr(analyzer, "get_nothing")
