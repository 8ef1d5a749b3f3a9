from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, raw_trace, table_set

from usp_prof.contract import GroupEntry, Manifest
from usp_prof.model.topology import Axis, Topology, group_key
from usp_prof.tables.catalog import assemble, build_rank
from usp_prof.tables.groups import declared, parse_ranks
from usp_prof.tables.parallelism.axis_names import axis_of_description
from usp_prof.tables.table_set import MemorySource

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_tp", "tp"), ("mesh_dp_shard", "dp_shard"), ("mesh_fsdp", "dp_shard"), ("mesh_dp_shard_cp", "dp_shard"),
        ("mesh_dp_replicate", "dp_replicate"), ("dp", "dp"), ("mesh_cp", "cp"), ("mesh_pp", "pp"), ("mesh_ep", "ep"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("CONTEXT_PARALLEL_GROUP", "cp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"), ("EMBEDDING_GROUP", "pp"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "unknown"), ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "unknown"),
        ("MODEL_PARALLEL_GROUP", "unknown"), ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "unknown"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "unknown"), ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"), ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp"), ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1", "cp"),
        ("HYBRID_DP_CP_GROUP_4", "cp"), ("POSITION_EMBEDDING_GROUP", "pp"), ("mesh_loss_mesh", "dp"),
        ("mesh_efsdp", "dp_shard"), ("mesh_dp_shard_in_ep", "dp_shard"), ("mesh_batch", "dp"), ("mesh_world", "world"),
        ("mesh_sp", "cp"), ("mesh_dp_tp", "unknown"), ("backup_of_tp_weights", "unknown"),
        ("CHECKPOINT_GROUP", "unknown"),
        ("default_pg", "unknown"), ("undefined", "unknown"), ("", "unknown"),
    ],
)  # fmt: skip
def test_group_descriptions_name_their_axis(description: str, axis: str) -> None:
    assert axis_of_description(description) == axis


def test_rank_lists_are_read_in_every_form() -> None:
    assert parse_ranks([0, 2]) == parse_ranks("[0, 2]") == parse_ranks({"0": 0, "2": 1}) == (0, 2)
    assert parse_ranks("[0, 1, ..., 255]") == parse_ranks(None) == parse_ranks(["a"]) == ()
    config = {"1": {"pg_name": "1", "pg_desc": "mesh_tp", "backend": "nccl", "ranks": [0, 1]}, "x": "damaged"}
    (group,) = declared({"distributedInfo": {"pg_config": config}})
    assert (group.key, group.size, group.axis, group.backend) == ("1@0,1", 2, "tp", "nccl")
    assert declared({"distributedInfo": "damaged"}) == declared({}) == ()


def collective(trace: Trace, name: str, *, at: int = 1_000, op: str = "all_reduce", count: int = 1) -> Trace:
    for number in range(count):
        trace.collective(op, at + 100 * number, 50, group=name, nelems=4, launch_at=10 + 40 * number, sequence=number)
    return trace


def axes(tables: TableSet, rank: int = 0) -> list[tuple[str, str]]:
    parts = tables.columns("collectives", rank)
    return list(zip(parts["axis"].tolist(), parts["axis_source"].tolist(), strict=True))


def test_the_manifest_names_an_axis_that_spans_the_world() -> None:
    trace = collective(Trace(0, 2).group("0", [0, 1], "default_pg").step(1, 0, 9_000), "0")
    manifest = Manifest(mesh={"dp_shard": 2}, groups=[GroupEntry("0", [0, 1], ["dp_shard"])])
    tables = table_set({0: trace}, manifest)
    assert axes(tables) == [("dp_shard", "manifest")]
    assert tables.topology.axes == {"dp_shard": 2}
    assert tables.topology.source == "manifest"
    assert tables.columns("activities", 0)["axis"].tolist() == ["dp_shard"]


def test_a_mark_selects_one_of_the_axes_of_a_group() -> None:
    trace = Trace(0, 2, device="cpu").group("0", [0, 1], "default_pg").step(1, 0, 9_000)
    trace.mark("ep::dispatch", 90, 50).gloo("all_to_all", 300, 10, posted_at=100, group="0")
    trace.gloo("all_gather", 500, 10, posted_at=200, group="0")
    manifest = Manifest(groups=[GroupEntry("0", [0, 1], ["dp_shard", "ep"])])
    assert axes(table_set({0: trace}, manifest)) == [("ep", "mark"), ("dp_shard", "manifest")]


def test_ranks_determine_the_axis_of_a_declared_mesh() -> None:
    places = {str(rank): {"dp": rank // 2, "tp": rank % 2} for rank in range(4)}
    manifest = Manifest(mesh={"dp": 2, "tp": 2}, axis_order=["dp", "tp"], coordinates=places)
    trace = Trace(0, 4).group("7", [0, 2]).group("8", [0, 1]).group("9", [0, 1, 2, 3]).step(1, 0, 9_000)
    for name, at in (("7", 1_000), ("8", 2_000), ("9", 3_000)):
        collective(trace, name, at=at)
    tables = table_set({0: trace}, manifest)
    assert axes(tables)[:2] == [("dp", "ranks"), ("tp", "ranks")]
    assert axes(tables)[2] == ("unknown", "none")
    assert tables.topology.coordinates[0] == {"dp": 0, "tp": 0}


def test_a_second_group_of_the_same_ranks_serves_the_axis_of_the_first() -> None:
    """DeepSpeed reduces gradients in a separate group, in addition to the one given to the session."""
    trace = Trace(0, 2).group("0", [0, 1], "default_pg").group("1", [0, 1]).step(1, 0, 9_000)
    trace = collective(trace, "1")
    second = GroupEntry("1", [0, 1], [])
    one_axis = Manifest(groups=[GroupEntry("0", [0, 1], ["dp"]), second])
    assert axes(table_set({0: trace}, one_axis)) == [("dp", "ranks")]
    several = Manifest(groups=[GroupEntry("0", [0, 1], ["dp"]), GroupEntry("2", [0, 1], ["ep"]), second])
    assert axes(table_set({0: trace}, several)) == [("unknown", "none")]


def test_equal_ranks_in_different_groups_stay_apart() -> None:
    trace = Trace(0, 2).group("1", [0, 1], "mesh_fsdp").group("2", [0, 1], "mesh_ep").step(1, 0, 9_000)
    collective(collective(trace, "1"), "2", at=2_000, op="all_to_all")
    assert axes(table_set({0: trace})) == [("dp_shard", "description"), ("ep", "description")]


def test_a_group_that_spans_a_divided_job_is_the_world() -> None:
    trace = Trace(0, 4).group("0", [0, 1, 2, 3], "default_pg").group("1", [0, 1], "mesh_tp").step(1, 0, 9_000)
    collective(collective(trace, "0"), "1", at=2_000)
    assert axes(table_set({0: trace})) == [("world", "inferred"), ("tp", "description")]


def test_a_truncated_rank_list_is_completed_by_name_or_stride() -> None:
    trace = Trace(0, 64).group("5", list(range(0, 64, 2)), "mesh_dp").step(1, 0, 9_000)
    args = {
        "Collective name": "allreduce",
        "Process Group Ranks": "[0, 2, ..., 62]",
        "Group size": 32,
        "dtype": "Float",
    }
    by_name, strided = {"Process Group Name": "5"}, {"Global rank start": 0, "Global rank stride": 2}
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    trace.kernel(kernel, 1_000, 10, stream=20, args=args | by_name)
    trace.kernel(kernel, 2_000, 10, stream=21, args=args | strided | {"Process Group Name": "6"})
    ranks = ",".join(map(str, range(0, 64, 2)))
    assert table_set(trace).columns("collectives", 0)["group"].tolist() == [f"5@{ranks}", f"6@{ranks}"]


def run(world: int, build: object) -> TableSet:
    return table_set({rank: build(Trace(rank, world).step(1, 0, 90_000)) for rank in range(world)})  # type: ignore[operator]


def bare(trace: Trace, kernel: str, count: int) -> Trace:
    for number in range(count):
        trace.kernel(kernel, 1_000 + 100 * number, 50, stream=20, launch_at=10 + 40 * number)
    return trace


def test_ranks_with_different_operations_share_no_group() -> None:
    first = bare(Trace(0, 2).step(1, 0, 90_000), "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 2)
    second = bare(Trace(1, 2).step(1, 0, 90_000), "ncclDevKernel_AllGather_RING_LL(x)", 2)
    tables = table_set({0: first, 1: second})
    assert tables.columns("collectives", 0)["group"].tolist() == ["", ""]
    assert axes(tables) == [("unknown", "none")] * 2


def test_a_later_start_of_recording_does_not_split_the_job() -> None:
    first = bare(Trace(0, 2).step(1, 0, 90_000), "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 3)
    second = bare(Trace(1, 2).step(1, 0, 90_000), "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 2)
    tables = table_set({0: first, 1: second})
    assert set(tables.columns("collectives", 1)["group"].tolist()) == {"@0,1"}
    assert set(tables.columns("collectives", 1)["group_size"].tolist()) == {2}


def test_a_rank_that_arrives_last_shares_the_calls_that_wait_for_it() -> None:
    """Its kernels are shorter than the error of its timestamps, so half of them seem to begin after all others end."""
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    early, late = (Trace(rank, 2).step(1, 0, 20_000_000) for rank in (0, 1))
    for number in range(6):
        begin, launch_at = 2_000_000 * (1 + number), 10_000 * (1 + number)
        early.kernel(name, begin, 1_000_000, stream=20, launch_at=launch_at)
        error = 12_000 if number % 2 else -12_000
        late.kernel(name, begin + 996_000 + error, 5_000, stream=20, launch_at=launch_at)
    tables = table_set({0: early, 1: late})
    assert set(tables.columns("collectives", 0)["group"].tolist()) == {"@0,1"}


def test_sharding_over_context_counts_context_groups_once() -> None:
    traces = {}
    for rank in range(4):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        trace = Trace(rank, 4).group("1", [0, 1, 2, 3], "mesh_fsdp").group("2", pair, "mesh_cp").step(1, 0, 9_000)
        traces[rank] = collective(collective(trace, "1"), "2", at=2_000)
    topology = table_set(traces).topology
    assert topology.axes == {"dp_shard": 2, "cp": 2}
    assert [dict(topology.coordinates[rank]) for rank in range(4)] == [
        {"dp_shard": rank // 2, "cp": rank % 2} for rank in range(4)
    ]
    group = topology.group(group_key("2", (0, 1)))
    assert group is not None
    assert group.axis == Axis.CP
    assert Topology().group("x") is None


def layered(rank: int, thread: int) -> Trace:
    """Two axes over gloo without a group on any event: tensor parallel gathers of 2, sharding of 4, a log."""
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    trace = Trace(rank, 4, device="cpu").group("0", [0, 1, 2, 3], "default_pg").group("5", [0, 1, 2, 3], "mesh_fsdp")
    trace.group("9", pair, "mesh_tp").step(1, 0, 90_000)
    sizes = {
        "c10d::allgather_into_tensor_coalesced_": (16, 8, thread + 4),
        "c10d::_allgather_base_": (64, 16, thread + 2),
    }
    at = 100
    for name, (output, given, worker) in sizes.items():
        for number in range(3):
            fsdp = worker == thread + 2
            if fsdp:
                trace.mark("FSDP::all_gather", at - 5, 40)
            trace.op(name, at, 20, dims=[[output], [given]], types=["float", "float"])
            trace.gloo("all_gather", at + 30, 10, dims=[given], thread=worker + number % 2)
            at += 100
    trace.op("c10d::allreduce_", at, 20, dims=[[[1]], []])
    return trace.gloo("all_reduce", at + 30, 10, dims=[1], thread=thread)


def test_gloo_workers_get_their_group_by_size_marks_and_order() -> None:
    tables = table_set({rank: layered(rank, 300 + 50 * rank) for rank in range(4)})
    parts = tables.columns("collectives", 2)
    names = [key.split("@")[0] for key in parts["group"].tolist()]
    assert names == ["9"] * 3 + ["5"] * 3 + ["0"]
    assert parts["axis"].tolist() == ["tp"] * 3 + ["dp_shard"] * 3 + ["world"]
    assert set(parts["axis_source"].tolist()) == {"inferred"}


def test_thousands_of_groups_are_resolved_fast() -> None:
    """Each group was compared with each other one, and with each entry of the manifest: 4 CPU s for these."""
    trace = Trace(0, 4_001)
    for other in range(1, 4_001):
        trace.group(str(other), (0, other))
    manifest = Manifest(
        groups=[GroupEntry(name=str(other), ranks=[0, other], axes=["dp"]) for other in range(1, 4_001)]
    )
    begun = time.process_time()
    table_set(trace, manifest)
    assert time.process_time() - begun < 2


def test_many_groups_of_the_same_ranks_are_resolved_in_linear_time() -> None:
    """Each group was compared with each other one, and all calls were searched for those of each group."""

    def resolving(groups: int) -> float:
        trace = Trace(0, 2).step(1, 0, 1_000 * groups + 4_000_000)
        for number in range(groups):
            begin = 1_000 * number
            trace.group(str(number), (0, 1), "")
            trace.collective("all_reduce", begin + 50, 60, group=str(number), launch_at=begin, sequence=0)
        sources = {0: MemorySource(build_rank(raw_trace(trace), 0, None))}
        begun = time.process_time()
        assemble(sources, manifest=None)
        return time.process_time() - begun

    assert resolving(16_000) < 8 * resolving(4_000)
