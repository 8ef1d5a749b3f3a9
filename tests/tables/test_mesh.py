"""Mesh: sizes from groups multiply to the world, or no mesh is shown."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

ORDER = ("tp", "cp", "ep", "dp", "pp")  # Megatron's: tensor ranks are adjacent


def partition(sizes: dict[str, int], *axes: str) -> list[list[int]]:
    """Return the groups over some axes of a mesh, like Megatron's rank generator."""
    names = [name for name in ORDER if name in sizes]
    strides, stride = {}, 1
    for name in names:
        strides[name], stride = stride, stride * sizes[name]
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in product(*(range(sizes[name]) for name in reversed(names))):
        at = dict(zip(reversed(names), place, strict=True))
        rank = sum(at[name] * strides[name] for name in names)
        groups.setdefault(tuple(at[name] for name in names if name not in axes), []).append(rank)
    return [sorted(ranks) for ranks in groups.values()]


def megatron(tp: int, cp: int, dp: int, pp: int, *, ep: int = 1, etp: int = 1) -> dict[str, list[list[int]]]:
    """Return all groups that Megatron-Core creates, by description."""
    dense = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    expert = {"tp": etp, "ep": ep, "dp": tp * cp * dp // (ep * etp), "pp": pp}
    return {
        "DATA_PARALLEL_GROUP_WITH_CP": partition(dense, "dp", "cp"),
        "DATA_PARALLEL_GROUP": partition(dense, "dp"),
        "CONTEXT_PARALLEL_GROUP": partition(dense, "cp"),
        "MODEL_PARALLEL_GROUP": partition(dense, "tp", "pp"),
        "TENSOR_MODEL_PARALLEL_GROUP": partition(dense, "tp"),
        "PIPELINE_MODEL_PARALLEL_GROUP": partition(dense, "pp"),
        "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": partition(dense, "tp", "dp", "cp"),
        "TENSOR_AND_DATA_PARALLEL_GROUP": partition(dense, "tp", "dp"),
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": partition(dense, "tp", "cp"),
        "EXPERT_MODEL_PARALLEL_GROUP": partition(expert, "ep"),
        "EXPERT_TENSOR_PARALLEL_GROUP": partition(expert, "tp"),
        "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": partition(expert, "tp", "ep"),
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": partition(expert, "tp", "ep", "pp"),
        "EXPERT_DATA_PARALLEL_GROUP": partition(expert, "dp"),
    }


def torchtitan(replicate: int, shard: int, cp: int, tp: int) -> dict[str, list[list[int]]]:
    """Return the groups of torchtitan's meshes, by description."""
    sizes = {"tp": tp, "cp": cp, "ep": shard, "dp": replicate}
    return {
        "mesh_batch": partition(sizes, "dp", "ep"),
        "mesh_loss_mesh": partition(sizes, "dp", "ep", "cp"),
        "mesh_dp_replicate": partition(sizes, "dp"),
        "mesh_fsdp": partition(sizes, "ep", "cp"),
        "mesh_cp": partition(sizes, "cp"),
        "mesh_tp": partition(sizes, "tp"),
    }


def run(groups: dict[str, list[list[int]]], world: int, ranks: range | None = None) -> TableSet:
    """Make a run with these groups, which have only a description and ranks."""
    traces = {}
    for rank in ranks or range(world):
        trace = Trace(rank, world).group("0", list(range(world)), "default_pg").step(1, 0, 9_000)
        number = 0
        for description, member_lists in groups.items():
            for members in member_lists:
                number += 1
                if rank in members:
                    trace.group(str(number), members, description)
        traces[rank] = trace
    return table_set(traces)


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        # Two groups of this job span its 4 ranks, and neither is an axis, so the mesh is not tp 4 x cp 2 x ep 4.
        ({"tp": 2, "cp": 2, "dp": 1, "pp": 1, "ep": 2, "etp": 2}, {"tp": 2, "cp": 2, "ep": 2}),
        ({"tp": 2, "cp": 2, "dp": 2, "pp": 2, "ep": 4}, {"dp": 2, "tp": 2, "cp": 2, "pp": 2, "ep": 4}),
        ({"tp": 1, "cp": 1, "dp": 4, "pp": 1, "ep": 4}, {"dp": 4, "ep": 4}),
        ({"tp": 4, "cp": 1, "dp": 1, "pp": 2}, {"tp": 4, "pp": 2}),
    ],
)
def test_megatron_groups_give_the_mesh_of_all_ranks_and_of_one(sizes: dict[str, int], axes: dict[str, int]) -> None:
    world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    topology = run(megatron(**sizes), world).topology
    assert topology.axes == axes
    assert len({tuple(sorted(place.items())) for place in topology.coordinates.values()}) == world
    last = run(megatron(**sizes), world, range(world - 1, world)).topology
    assert last.axes == axes
    assert last.coordinates[world - 1] == topology.coordinates[world - 1]


def test_torchtitans_flattened_dimensions_are_counted_once() -> None:
    topology = run(torchtitan(2, 2, 2, 2), 16).topology
    assert topology.axes == {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "cp": 2}
    assert topology.coordinates[13] == {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "cp": 0}


def test_sizes_whose_product_is_not_the_world_size_are_not_a_mesh() -> None:
    tables = run({"mesh_tp": partition({"tp": 2, "dp": 4}, "tp")}, 8)
    assert tables.topology.axes == {}
    assert tables.topology.coordinates == {}
    (row,) = [row for row in tables.health if row.code == "mesh_unknown"]
    assert row.detail == (
        "no mesh is shown: the sizes that the groups show (tp 2) do not multiply to the world of 8 ranks"
    )


def test_groups_of_different_sizes_are_not_a_mesh() -> None:
    tables = run({"mesh_tp": [[0, 1, 2], [3]]}, 4)
    assert tables.topology.axes == {}
    assert "do not tell one size of tp" in next(row.detail for row in tables.health if row.code == "mesh_unknown")


def test_a_group_without_a_known_axis_is_not_a_mesh() -> None:
    """The reason ended in "several ranks share a place of the mesh ", with no mesh behind it."""
    tables = run({"undescribed": [[0, 1, 2, 3]]}, 4)
    (row,) = [row for row in tables.health if row.code == "mesh_unknown"]
    assert row.detail == "no mesh is shown: no group shows a parallel axis"


def test_a_product_with_one_axis_larger_than_one_is_that_axis() -> None:
    tables = run(megatron(2, 1, 1, 1), 2)
    axes = {group.description: (group.axis, group.axis_source) for group in tables.topology.groups if group.size > 1}
    assert axes["TENSOR_AND_CONTEXT_PARALLEL_GROUP"] == ("tp", "ranks")
    assert axes["TENSOR_AND_DATA_PARALLEL_GROUP"] == ("tp", "ranks")
    both = run(megatron(2, 2, 1, 1), 4)
    assert {g.axis for g in both.topology.groups if g.description.startswith("TENSOR_AND_CONTEXT")} == {"unknown"}
