"""Known answers for defects of other trace readers; the letters are those in our list of defects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny import BASE, Trace, table_set, write

import usp_prof

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


def busy_ns(tables: TableSet, *kinds: str, rank: int = 0) -> int:
    """Add up the time of activities that do not overlap, as these tests make them."""
    activities = tables.columns("activities", rank)
    return int(activities["dur_ns"][activities.matches("kind", *kinds)].sum())


def health(tables: TableSet, rank: int = 0) -> dict[str, int]:
    rows = tables.columns("health", rank)
    return dict(zip(rows["code"].tolist(), rows["count"].tolist(), strict=True))


def test_a1_nanoseconds_are_kept_and_short_kernels_stay_positive() -> None:
    # Rounding up starts and rounding down ends makes each of these -1 us long, or reorders them.
    trace = Trace().step(1, 0, 100_000)
    for number in range(50):
        trace.kernel(f"k{number}", 1_001 + 701 * number, 449, launch_at=10 + number)
    kernels = table_set(trace).columns("kernels", 0)
    assert kernels["dur_ns"].tolist() == [449] * 50
    assert np.diff(kernels["start_ns"]).tolist() == [701] * 49
    assert kernels["start_ns"][0] == BASE + 1_001


@pytest.mark.parametrize("base", [0, BASE])
def test_a1_times_beyond_double_precision_are_exact(base: int) -> None:
    late = 1_712_195_495_519_689_123  # microseconds with three decimals: more digits than a double holds
    trace = Trace(base=base).step(1, late, 5_000).kernel("k", late + 1_007, 333, launch_at=late + 1)
    kernels = table_set(trace).columns("kernels", 0)
    assert (kernels["start_ns"].tolist(), kernels["dur_ns"].tolist()) == ([base + late + 1_007], [333])


def test_a3_triton_launchers_are_host_work_though_they_name_a_stream() -> None:
    trace = Trace().step(1, 0, 10_000)
    trace.op("triton_poi_fused_add_0", 100, 2_000, args={"stream": 0, "grid": [1, 1, 1], "device": 0})
    trace.kernel("triton_poi_fused_add_0", 3_000, 500, launch_at=150)
    tables = table_set(trace)
    assert busy_ns(tables, "compute") == 500
    assert len(tables.columns("kernels", 0)) == 1


def test_a4_synchronization_events_are_not_busy_time() -> None:
    trace = Trace().step(1, 0, 2_000_000).kernel("gemm", 10_000, 100_000, launch_at=5_000)
    trace.event("Stream Sync", "cuda_sync", 110_000, 900_000, pid=0, tid=7, args={"stream": 7, "device": 0})
    trace.event("Event Sync", "cuda_sync", 20_000, 280_000, pid=0, tid=7, args={"stream": 7, "device": 0})
    tables = table_set(trace)
    assert busy_ns(tables, "compute", "communication", "memcpy", "memset") == 100_000


COMMUNICATION = {
    "void deep_ep::internode::dispatch<false, 4, false, 8192>(int4*)": "deepep",
    "void deep_ep::internode::combine<true>(int4*)": "deepep",
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": "deepep",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "symmetric_memory",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8>(float**)": "symmetric_memory",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)": "custom_all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(int)": "custom_all_reduce",
    "nvshmemi_transfer_rma_nbi": "nvshmem",
    "void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)": "userbuffers",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "nccl",
    "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)": "nccl",
    "hcclAllReduce_kernel": "hccl",
    "mscclKernel_Sum_half_LL": "msccl",
}
COMPUTE = [
    "hipblaslt_gemm_kernel",
    "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32",
    "void at::native::SyncBatchNorm_forward_kernel<float>(float*)",
    "batch_norm_sync_stats_SyncBatchNorm",
    "headmajor_transpose_kernel",
    "void cub::DeviceMemcpyKernel<int>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float)",
    "triton_red_fused_all_reduce_mean_3",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>(float)",
]


@pytest.mark.parametrize(("name", "library"), COMMUNICATION.items())
def test_a5_t10_communication_of_every_library_is_known(name: str, library: str) -> None:
    kernels = table_set(Trace().step(1, 0, 9_000).kernel(name, 1_000, 500, launch_at=10)).columns("kernels", 0)
    assert (kernels["kind"].tolist(), kernels["library"].tolist()) == (["communication"], [library])


@pytest.mark.parametrize("name", COMPUTE)
def test_a5_names_that_only_look_like_communication_compute(name: str) -> None:
    kernels = table_set(Trace().step(1, 0, 9_000).kernel(name, 1_000, 500, launch_at=10)).columns("kernels", 0)
    assert (kernels["kind"].tolist(), kernels["library"].tolist()) == (["compute"], [""])


def test_a5_copies_are_classified_by_category_not_by_name() -> None:
    trace = Trace().step(1, 0, 9_000).memcpy(1_000, 300, launch_at=10).memset(2_000, 100, launch_at=20)
    trace.kernel("hipMemcpyDtoD_kernel_copy", 3_000, 50, launch_at=30, category="gpu_memcpy")
    tables = table_set(trace)
    assert tables.columns("kernels", 0)["kind"].tolist() == ["memcpy", "memset", "memcpy"]
    assert (busy_ns(tables, "memcpy"), busy_ns(tables, "memset"), busy_ns(tables, "communication")) == (350, 100, 0)


def test_a9_work_without_a_launch_is_kept_in_runs_of_several_steps() -> None:
    trace = Trace().step(1, 0, 10_000).step(2, 10_000, 10_000)
    trace.kernel("linked", 1_000, 100, launch_at=500).kernel("orphan", 2_000, 100, correlation=999_999)
    trace.kernel("next", 11_000, 100, launch_at=10_500)
    tables = table_set(trace)
    kernels = tables.columns("kernels", 0)
    assert kernels["name"].tolist() == ["linked", "orphan", "next"]
    assert kernels["step"].tolist() == [1, 1, 2]
    assert health(tables)["unlinked_kernels"] == 1


def test_a9_runtime_and_driver_call_of_one_correlation_do_not_double_the_kernel() -> None:
    trace = Trace().step(1, 0, 10_000).op("aten::mm", 90, 60)
    trace.launch(7, 100, 30).launch(7, 105, 20, name="cuLaunchKernel", category="cuda_driver")
    trace.kernel("gemm", 1_000, 400, correlation=7)
    tables = table_set(trace)
    kernels, launches = tables.columns("kernels", 0), tables.columns("launches", 0)
    assert (kernels["dur_ns"].tolist(), kernels["op"].tolist()) == ([400], ["aten::mm"])
    assert launches["kernels"].tolist() == [1, 0]
    assert health(tables)["duplicate_correlation"] == 1


def test_a10_minified_json_and_execution_traces_lose_no_rank(tmp_path: Path) -> None:
    for rank in range(4):
        trace = Trace(rank, 4).step(1, 0, 5_000).kernel("gemm", 1_000, 100 + rank, launch_at=10)
        (tmp_path / f"trace_{rank}.json").write_bytes(trace.to_json(separators=(",", ":")))
        execution = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch|profiler]"}]}
        (tmp_path / f"et_{rank}.json").write_text(json.dumps(execution))
    run = usp_prof.open_run(tmp_path, cache_dir=tmp_path / "cache")
    assert run.tables.ranks == (0, 1, 2, 3)
    assert [int(run.tables.columns("kernels", r)["dur_ns"][0]) for r in range(4)] == [100, 101, 102, 103]


def test_a11_base_times_are_part_of_the_clock() -> None:
    quarter = 7_889_238_000_000_000
    early = Trace(0, 2).step(1, 0, 5_000).kernel("gemm", 1_000, 100, launch_at=10)
    late = Trace(1, 2, base=BASE - quarter).step(1, quarter, 5_000).kernel("gemm", quarter + 1_000, 100)
    tables = table_set({0: early, 1: late})
    assert tables.columns("kernels", 0)["start_ns"].tolist() == tables.columns("kernels", 1)["start_ns"].tolist()


def test_b1_t11_gloo_traces_have_lanes_steps_and_axes() -> None:
    trace = Trace(0, 2, device="cpu").group("1", [0, 1], "mesh_dp").step(1, 0, 10_000)
    trace.op("aten::mm", 100, 3_000).gloo("all_reduce", 1_000, 4_000, posted_at=900, posted_by=300, group="1")
    activities = table_set(trace).columns("activities", 0)
    assert activities["lane"].tolist() == ["cpu", "gloo 200"]
    assert activities["kind"].tolist() == ["compute", "communication"]
    assert activities["axis"].tolist() == ["", "dp"]
    assert activities["step"].tolist() == [1, 1]


def test_b2_stream_zero_is_a_stream() -> None:
    trace = Trace().step(1, 0, 5_000).kernel("Cijk_Ailk", 1_000, 100, stream=0, correlation=5)
    trace.launch(5, 10, name="hipLaunchKernel").op("aten::mm", 0, 50)
    tables = table_set(trace)
    kernels = tables.columns("kernels", 0)
    assert (kernels["step"].tolist(), kernels["stream"].tolist(), kernels["op"].tolist()) == ([1], [0], ["aten::mm"])
    assert tables.columns("launches", 0)["kernels"].tolist() == [1]
    assert tables.columns("ranks", 0)["device_kind"].tolist() == ["rocm"]


def test_b3_without_step_marks_the_trace_is_one_window_and_reports_it() -> None:
    tables = table_set(Trace().kernel("a", 1_000, 100, launch_at=10).kernel("b", 5_000, 200, launch_at=20))
    steps = tables.columns("steps", 0)
    assert steps["source"].tolist() == ["window"]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [4_200]
    assert health(tables)["no_steps"] == 1


def test_b4_list_form_and_one_truncated_rank_lose_no_other_rank(tmp_path: Path) -> None:
    traces = {r: Trace(r, 3).step(1, 0, 9_000).kernel("gemm", 1_000, 100, launch_at=10) for r in range(3)}
    write(traces, tmp_path)
    (tmp_path / "rank1.json.gz").unlink()
    (tmp_path / "rank1.json").write_bytes(traces[1].to_json()[:-150])
    (tmp_path / "rank2.json.gz").unlink()
    events = json.loads(traces[2].to_json())["traceEvents"]
    (tmp_path / "rank2.json").write_text(json.dumps(events))
    run = usp_prof.open_run(tmp_path, cache_dir=tmp_path / "cache")
    assert run.tables.ranks == (0, 1, 2)
    assert [len(run.tables.columns("kernels", rank)) for rank in (0, 2)] == [1, 1]


def test_t1_unlinked_kernels_count_as_busy() -> None:
    trace = Trace().step(1, 0, 50_000)
    for number in range(10):
        trace.kernel("linked", 1_000 + 1_000 * number, 700, launch_at=10 + number)
        trace.kernel("unlinked", 1_700 + 1_000 * number, 300)
    assert busy_ns(table_set(trace), "compute") == 10_000


def stalled(call: str) -> Trace:
    """Eight consecutive kernels; the end of the second one was written 3 s too late."""
    trace = Trace().step(1, 0, 100_000)
    for number in range(8):
        trace.launch(number + 1, 10 + number, name=call)
        late = 3_000_000_000 if number == 1 else 0
        trace.kernel("gemm", 1_000 + 1_000 * number, 900 + late, correlation=number + 1)
    return trace


def test_t11_rocms_overrunning_durations_are_cut_where_the_next_work_begins() -> None:
    tables = table_set(stalled("hipLaunchKernel"))
    kernels = tables.columns("kernels", 0)
    assert kernels["dur_ns"].tolist() == [900, 1_000, *[900] * 6]
    assert set(kernels["lane"].tolist()) == {0}
    assert busy_ns(tables, "compute") == 7 * 900 + 1_000
    assert health(tables)["overrunning_durations"] == 1
    assert tables.columns("steps", 0)["end_ns"].tolist() == [BASE + 8_900]


def test_t11_work_that_reaches_into_the_next_alone_and_other_makers_streams_are_left() -> None:
    overlapping = Trace().step(1, 0, 9_000).launch(1, 10, name="hipLaunchKernel")
    overlapping.kernel("a", 1_000, 1_500, correlation=1).kernel("b", 2_000, 100).kernel("c", 2_600, 100)
    assert table_set(overlapping).columns("kernels", 0)["dur_ns"].tolist() == [1_500, 100, 100]
    nvidia = table_set(stalled("cudaLaunchKernel"))
    assert nvidia.columns("kernels", 0)["dur_ns"].max() == 3_000_000_900
    assert health(nvidia)["overlapping_kernels"] == 6
    assert "overrunning_durations" not in health(nvidia)


def test_t11_all_kernels_of_a_graph_count() -> None:
    trace = Trace().step(1, 0, 50_000).launch(7, 100, name="cudaGraphLaunch")
    for number in range(10):
        trace.kernel(f"k{number}", 1_000 + 700 * number, 700, correlation=7)
    tables = table_set(trace)
    assert busy_ns(tables, "compute") == 7_000
    assert tables.columns("launches", 0)["kernels"].tolist() == [10]
    window = tables.columns("steps", 0)
    assert int(window["end_ns"][0] - window["start_ns"][0]) == 7_000


def test_t2_links_use_correlation_ids_not_arrows() -> None:
    trace = Trace().step(1, 0, 9_000).op("aten::add", 50, 100).kernel("add", 1_000, 100, launch_at=60)
    arrow = {"cat": "async_cpu_to_gpu", "id": 1001, "name": "async_cpu_to_gpu", "pid": 1, "tid": 100, "ts": 60}
    trace.events += [arrow | {"ph": "s"}, arrow | {"ph": "f", "pid": 0, "tid": 7, "ts": 1_000, "bp": "e"}]
    assert table_set(trace).columns("kernels", 0)["op"].tolist() == ["aten::add"]


def test_t3_a_subset_of_ranks_keeps_its_numbers() -> None:
    traces = {rank: Trace(rank, 4).step(1, 0, 5_000).kernel("k", 1_000, rank, launch_at=1) for rank in (2, 3)}
    tables = table_set(traces)
    assert tables.ranks == (2, 3)
    assert tables.columns("kernels", 3)["dur_ns"].tolist() == [3]


def test_t4_disjoint_groups_of_one_name_stay_apart() -> None:
    traces = {}
    for rank in range(4):
        members = [0, 1] if rank < 2 else [2, 3]
        trace = Trace(rank, 4).group("7", members, "mesh_tp").step(1, 0, 9_000)
        traces[rank] = trace.collective("all_reduce", 1_000, 500, launch_at=10, group="7", nelems=8, sequence=1)
    tables = table_set(traces)
    assert [tables.columns("collectives", rank)["group"].tolist() for rank in range(4)] == [
        ["7@0,1"], ["7@0,1"], ["7@2,3"], ["7@2,3"],
    ]  # fmt: skip
    assert [group.ranks for group in tables.topology.axis_groups("tp")] == [(0, 1), (2, 3)]
    assert tables.topology.axes == {}  # four ranks: the other axis has no name, so no mesh is shown
