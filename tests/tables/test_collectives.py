from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.tables.communication.arguments import elements, first_shape, size_of

if TYPE_CHECKING:
    from usp_prof.columns.table import Columns


def collectives(trace: Trace) -> Columns:
    return table_set(trace).columns("collectives", trace.rank)


def test_the_arguments_of_a_kernel_describe_it() -> None:
    trace = Trace(1, 4).group("3", [1, 3], "mesh_tp").step(1, 0, 9_000)
    trace.collective("all_gather", 1_000, 50, group="3", nelems=8, out_nelems=16, dtype="BFloat16", sequence=9)
    row = collectives(trace)
    assert (row["op"][0], row["library"][0], row["group"][0], row["group_size"][0]) == (
        "all_gather",
        "nccl",
        "3@1,3",
        2,
    )
    assert (row["in_bytes"][0], row["out_bytes"][0], row["dtype"][0], row["sequence"][0]) == (16, 32, "BFloat16", 9)
    assert (row["axis"][0], row["axis_source"][0], row["lane"][0]) == ("tp", "description", "stream 20")


def test_the_record_around_the_launch_describes_a_bare_kernel() -> None:
    trace = Trace(0, 2).group("1", [0, 1], "mesh_dp").step(1, 0, 9_000)
    args = {"Collective name": "_reduce_scatter_base", "Process Group Name": "1", "Process Group Ranks": "[0, 1]",
            "In msg nelems": 8, "Out msg nelems": 4, "Group size": 2, "dtype": "Float", "Seq": 3}  # fmt: skip
    trace.op("record_param_comms", 90, 40, args=args)
    trace.collective("reduce_scatter", 1_000, 50, launch_at=None, described=False)
    trace.kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", 2_000, 10, stream=20, launch_at=100)
    row = collectives(trace)
    assert row["group"].tolist() == ["1@0,1", "1@0,1"]  # the first by its stream alone
    assert row["in_bytes"].tolist() == [-1, 32]
    assert (row["op_event"][1], row["sequence"][1]) == (1, 3)


def test_old_records_are_read_by_position() -> None:
    trace = Trace(0, 8).step(1, 0, 9_000)
    inputs = ["", "337", "93825133358160", "1", "", "[]", "[]", "8"]
    trace.op("record_param_comms", 90, 40, dims=[[[4, 16]], [], [], [], [], [], [], []], inputs=inputs)
    trace.mark("nccl:all_reduce", 95, 30, args={"Input Dims": [[4, 16]], "Input type": ["c10::Half"]})
    trace.kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)", 1_000, 10, stream=20, launch_at=100)
    row = collectives(trace)
    assert (row["sequence"][0], row["group_size"][0], row["group"][0]) == (337, 8, "@0,1,2,3,4,5,6,7")
    assert (row["in_bytes"][0], row["out_bytes"][0], row["shape"][0]) == (128, 128, "[4,16]")


@pytest.mark.parametrize(
    ("mark", "ops"),
    [("nccl:all_to_all", ["all_to_all", "all_to_all"]), ("nccl:recv 0<-1", ["send_recv", "recv"])],
)
def test_sendrecv_kernels_take_their_kind_from_the_host_range(mark: str, ops: list[str]) -> None:
    trace = Trace(0, 2).step(1, 0, 9_000).mark(mark, 90, 50)
    trace.kernel("ncclDevKernel_SendRecv(x)", 1_000, 10, stream=20, launch_at=100)
    trace.kernel("ncclDevKernel_SendRecv(x)", 500, 10, stream=20, correlation=1)
    assert collectives(trace)["op"].tolist() == ops


def test_pipeline_marks_supply_missing_directions_and_peers() -> None:
    trace = Trace(1, 4).step(1, 0, 9_000)
    for number, operation in enumerate(["send_f", "recv_b"]):
        trace.mark(f"pp::{operation} stage=1 mb=0 peer={2 - number}", 90 + 100 * number, 50)
        trace.kernel("ncclDevKernel_SendRecv(x)", 1_000 + 100 * number, 10, stream=20, launch_at=100 + 100 * number)
    row = collectives(trace)
    assert row["op"].tolist() == ["send", "recv"]
    assert row["peer"].tolist() == [2, -1]  # no rank sends to itself
    assert row["axis"].tolist() == ["pp", "pp"]


def test_batched_sends_without_any_range_stay_batched() -> None:
    trace = Trace(0, 2).step(1, 0, 9_000).kernel("ncclDevKernel_SendRecv(x)", 1_000, 10, launch_at=100)
    assert collectives(trace)["op"].tolist() == ["send_recv"]


@pytest.mark.parametrize(
    ("mark", "axis"),
    [
        ("cp::ring_send_recv step=1", "cp"),
        ("ep::dispatch", "ep"),
        ("pp::send_f stage=0 mb=1 peer=1", "pp"),
        ("pp::F stage=0 mb=1", "unknown"),
        ("FSDP::all_gather (layers.0)", "dp_shard"),
        ("dp::bucket_all_reduce", "dp"),
    ],
)
def test_marks_around_the_post_give_an_axis(mark: str, axis: str) -> None:
    trace = Trace(0, 2, device="cpu").step(1, 0, 9_000).mark(mark, 90, 50)
    trace.gloo("all_gather", 300, 100, posted_at=100)
    row = collectives(trace)
    assert row["axis"].tolist() == [axis]
    assert row["axis_source"].tolist() == ["none" if axis == "unknown" else "mark"]


def test_gloo_takes_the_operation_of_its_post() -> None:
    trace = Trace(0, 2, device="cpu").step(1, 0, 9_000)
    trace.gloo("reduce_scatter", 300, 100, posted_at=100, dims=[8]).gloo(
        "all_reduce", 500, 100, posted_at=150, dims=[8]
    )
    trace.gloo("all_reduce", 50, 10, dims=[8], thread=201)
    row = collectives(trace)
    assert row["op"].tolist() == ["all_reduce", "reduce_scatter", "all_reduce"]
    assert row["op_event"].tolist() == [-1, 1, 3]
    assert row["lane"].tolist() == ["gloo 201", "gloo 200", "gloo 200"]
    health = table_set(trace).columns("health", 0)
    assert dict(zip(health["code"], health["count"], strict=True))["gloo_without_post"] == 1


def test_bytes_of_gloo_follow_from_shape_and_operation() -> None:
    trace = Trace(0, 4, device="cpu").group("0", [0, 1, 2, 3], "mesh_dp").step(1, 0, 9_000)
    for number, op in enumerate(["all_reduce", "all_gather", "reduce_scatter"]):
        trace.gloo(op, 300 * (number + 1), 100, posted_at=100 + 30 * number, dims=[8], dtype="double")
    trace.gloo("send", 2_000, 100, thread=100, posted_at=1_990, dims=[2])
    trace.gloo("recv", 2_300, 100, thread=100, posted_at=2_290, dims=[2])
    row = collectives(trace)
    assert row["op"].tolist() == ["all_reduce", "all_gather", "reduce_scatter", "send", "recv"]
    assert row["in_bytes"].tolist() == [64, 64, 64, 8, 0]
    assert row["out_bytes"].tolist() == [64, 256, 16, 0, 8]


def test_sends_in_flight_have_lanes_of_their_own() -> None:
    trace = Trace(0, 2, device="cpu").step(1, 0, 9_000)
    for at in (100, 110, 120):
        trace.gloo("send", at, 500, thread=100)
    activities = table_set(trace).columns("activities", 0)
    assert activities["lane"].tolist() == ["gloo p2p 0", "gloo p2p 1", "gloo p2p 2"]
    assert activities["collective"].tolist() == [0, 1, 2]


def test_a_gpu_job_without_gpu_events_has_host_ranges() -> None:
    trace = Trace(0, 2).step(1, 0, 9_000)
    trace.op("record_param_comms", 90, 40).mark("nccl:all_reduce", 95, 30).op("record_param_comms", 200, 40)
    trace.mark("nccl:broadcast", 400, 30)
    row = collectives(trace)
    assert row["op"].tolist() == ["all_reduce", "broadcast"]
    assert row["event"].tolist() == [-1, -1]
    assert len(table_set(trace).columns("activities", 0)) == 0


@pytest.mark.parametrize(
    ("dims", "first", "second"),
    [
        ("[[2,3],[4]]", 6, 4),
        ("[[[2,3],[5]],[]]", 11, 1),
        ("[[],[]]", 1, 1),
        ("", -1, -1),
        ("{", -1, -1),
        ("[3]", -1, -1),
    ],
)
def test_numbers_of_elements_follow_from_shapes(dims: str, first: int, second: int) -> None:
    assert (elements(dims), elements(dims, 1)) == (first, second)


def test_bytes_follow_from_shapes_and_types() -> None:
    assert [first_shape(d) for d in ("[[2,3],[4]]", "[[[2,3]],[]]", "[[]]", "", "x")] == ["[2,3]", "[2,3]", "", "", ""]
    sizes = {"c10::BFloat16": 2, "Float8_e4m3fn": 1, "long int": 8, "torch.float32": 4, "odd": -1}
    assert {name: size_of(name) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("op", "place", "pipeline", "peer"),
    [
        ("send", 0, [1, 3], 1),
        ("send", 1, [1, 3], 1),  # no rank sends to itself: Megatron uses the default group in one direction
        ("recv", 1, [0, 1, 2, 3], 1),  # not rank 3 of the embedding's group
    ],
)
def test_peers_of_megatrons_pipelines(op: str, place: int, pipeline: list[int], peer: int) -> None:
    rank = 3 if len(pipeline) == 2 else 0
    trace = Trace(rank, 4, device="cpu").group("0", [0, 1, 2, 3], "default_pg").step(1, 0, 90_000)
    trace.group("1", pipeline, "PIPELINE_MODEL_PARALLEL_GROUP").group("2", [pipeline[0], 3], "EMBEDDING_GROUP")
    trace.group("3", [rank], "POSITION_EMBEDDING_GROUP")
    inputs, types = ["", "", str(place), "0"], ["TensorList", "", "Scalar", "Scalar"]
    for number in range(4):
        at = 10_000 * (number + 1)
        name = "c10d::send" if op == "send" else "c10d::recv_"
        trace.op(name, at, 20, dims=[[[4]], [], [], []], types=types, inputs=inputs).gloo(op, at + 10, 500, thread=100)
    parts = table_set(trace).columns("collectives", rank)
    key = "1@" + ",".join(map(str, pipeline))
    assert set(zip(parts["axis"], parts["group"], parts["peer"].tolist(), strict=True)) == {("pp", key, peer)}
