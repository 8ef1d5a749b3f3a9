"""Host tables: ops, phases, launches, annotations, memory and ranks."""

from __future__ import annotations

import pytest
from tiny import BASE, Trace, table_set

from usp_prof.contract import Manifest
from usp_prof.tables.events.host_calls import kind_of


def test_ops_nest_and_know_their_own_time() -> None:
    trace = Trace().op("aten::linear", 0, 100, dims=[[2, 3]], types=["float"], external_id=7)
    trace.op("aten::addmm", 10, 60, sequence=5).op("aten::empty", 20, 5).op("aten::other", 30, 50, thread=9)
    ops = table_set(trace).columns("ops", 0)
    assert ops["name"].tolist() == ["aten::linear", "aten::addmm", "aten::empty", "aten::other"]
    assert ops["self_ns"].tolist() == [40, 55, 5, 50]
    assert ops["depth"].tolist() == [0, 1, 2, 0]
    assert ops["parent"].tolist() == [-1, 0, 1, -1]
    assert (ops["input_dims"][0], ops["input_types"][0]) == ("[[2,3]]", '["float"]')
    assert (ops["external_id"][0], ops["sequence"][1], ops["sequence"][0]) == (7, 5, -1)


@pytest.mark.parametrize(
    ("mark", "phase"),
    [
        ("pp::F stage=0 mb=1", "forward"),
        ("pp::W stage=0 mb=1", "backward"),
        ("pp::send_f stage=0 mb=1 peer=1", ""),
        ("train::optimizer", "optimizer"),
        ("train::forward", "forward"),
        ("cp::ring_wait", ""),
        ("## backward ##", "backward"),
        ("DistributedDataParallel.forward", "forward"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("another range", ""),
    ],
)
def test_the_phase_comes_from_the_surrounding_mark(mark: str, phase: str) -> None:
    ops = table_set(Trace().mark(mark, 0, 100).op("aten::mm", 10, 10)).columns("ops", 0)
    assert ops["phase"].tolist() == [phase]


def test_ops_inside_the_autograd_engine_are_backward() -> None:
    trace = Trace().op("autograd::engine::evaluate_function: MmBackward0", 0, 100, thread=2)
    trace.op("aten::mm", 10, 10, thread=2).op("aten::mm", 50, 10)
    assert table_set(trace).columns("ops", 0)["phase"].tolist() == ["backward", "backward", ""]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernelExC", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cudaGraphLaunch", "graph_launch"),
        ("cudaMemcpyAsync", "memcpy"),
        ("cudaMemsetAsync", "memset"),
        ("cudaStreamSynchronize", "sync"),
        ("cudaEventRecord", "event"),
        ("cudaStreamWaitEvent", "event"),
        ("cudaMalloc", "malloc"),
        ("cudaFree", "malloc"),
        ("cudaGetDevice", "other"),
    ],
)
def test_calls_have_their_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_launches_count_their_work_and_its_wait() -> None:
    trace = Trace().launch(1, 100, name="cudaGraphLaunch").launch(2, 300, name="cudaDeviceSynchronize")
    trace.kernel("a", 700, 10, correlation=1).kernel("b", 600, 10, correlation=1, args={"graph id": 4})
    tables = table_set(trace)
    launches = tables.columns("launches", 0)
    assert launches["kernels"].tolist() == [2, 0]
    assert launches["delay_ns"].tolist() == [500, -1]
    assert launches["blocking"].tolist() == [False, True]
    assert tables.columns("kernels", 0)["graph"].tolist() == [4, -1]


def test_kernels_have_their_launch_shape_and_occupancy() -> None:
    args = {"grid": [4, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 37}
    kernels = table_set(Trace().kernel("k", 5, 5, args=args)).columns("kernels", 0)
    assert (kernels["blocks"][0], kernels["threads_per_block"][0], kernels["occupancy"][0]) == (8, 128, 37.0)


def test_kernels_that_overlap_on_one_stream_get_lanes() -> None:
    trace = Trace().kernel("a", 0, 100).kernel("b", 50, 100).kernel("c", 120, 10).kernel("d", 60, 10, stream=8)
    tables = table_set(trace)
    assert tables.columns("kernels", 0)["lane"].tolist() == [0, 1, 0, 0]
    lanes = tables.columns("activities", 0)["lane"].tolist()
    assert lanes == ["stream 7", "stream 7/1", "stream 8", "stream 7"]


def test_external_ids_link_work_with_a_missing_launch() -> None:
    trace = Trace().op("aten::mm", 10, 10, external_id=5).op("aten::add", 30, 10, external_id=70)
    trace.kernel("tied", 100, 10, correlation=900, args={"External id": 5})
    trace.kernel("old form", 120, 10, correlation=70, args={"External id": 70})
    trace.kernel("before its op", 20, 5, correlation=901, args={"External id": 70})
    kernels = table_set(trace).columns("kernels", 0)
    assert dict(zip(kernels["name"].tolist(), kernels["op"].tolist(), strict=True)) == {
        "tied": "aten::mm",
        "old form": "",
        "before its op": "",
    }


def test_annotations_in_our_grammar_are_parsed() -> None:
    trace = Trace().mark("cp::ring_wait step=2", 10, 5).mark("anything", 20, 5)
    trace.event("ProfilerStep#1", "gpu_user_annotation", 30, 5, pid=0, tid=7)
    annotations = table_set(trace).columns("annotations", 0)
    assert annotations["area"].tolist() == ["cp", "", ""]
    assert annotations["what"].tolist() == ["ring_wait", "", ""]
    assert annotations["on_device"].tolist() == [False, False, True]


def test_allocator_events_are_kept() -> None:
    memory = table_set(Trace().memory(20, -64, 0).memory(10, 64, 64, address=7)).columns("memory", 0)
    assert memory["start_ns"].tolist() == [BASE + 10, BASE + 20]
    assert memory["bytes"].tolist() == [64, -64]
    assert memory["allocated_bytes"].tolist() == [64, 0]


def test_damaged_arguments_affect_only_themselves() -> None:
    trace = Trace().op("aten::mm", 0, 10, dims=[[1]]).op("aten::mm", 20, 10, args={"Input Dims": 3})
    assert table_set(trace).columns("ops", 0)["input_dims"].tolist() == ["[[1]]", "3"]


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda t: t.op("aten::mm", 0, 5), "cpu"),
        (lambda t: t.kernel("k", 0, 5, launch_at=1), "cuda"),
        (lambda t: t.kernel("k", 0, 5, category="mtia_ccp_events"), "mtia"),
        (lambda t: t.launch(3, 1, name="hipLaunchKernel").kernel("k", 0, 5, correlation=3), "rocm"),
        (lambda t: t.meta(deviceProperties=[{"id": 0, "name": "AMD Instinct"}]).kernel("k", 0, 5), "rocm"),
        (lambda t: t.launch(3, 1, category="xpu_runtime").kernel("k", 0, 5, correlation=3), "xpu"),
    ],
)
def test_the_kind_of_device_is_recognized(build: object, kind: str) -> None:
    ranks = table_set(build(Trace())).columns("ranks", 0)  # type: ignore[operator] # parametrised builders
    assert ranks["device_kind"].tolist() == [kind]


def test_ranks_name_the_sources_of_their_data() -> None:
    trace = Trace(3, 8).meta(host_name="node7", torch_version="2.13").op("aten::mm", 5, 10)
    row = table_set(trace).columns("ranks", 3)
    assert (row["rank_source"][0], row["world_size"][0], row["host"][0]) == ("distributedInfo", 8, "node7")
    assert (row["first_ns"][0] - BASE, row["last_ns"][0] - BASE, row["torch"][0]) == (5, 15, "2.13")
    bare = Trace(3, 8).op("aten::mm", 5, 10)
    bare.distributed = None
    assert table_set(bare).columns("ranks", 3)["rank_source"].tolist() == ["name"]
    assert table_set(bare, Manifest(hosts={"3": "n"})).columns("ranks", 3)["rank_source"].tolist() == ["manifest"]
