from __future__ import annotations

from math import prod

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from usp_prof.contract import GroupEntry
from usp_prof.record.surroundings import check_mesh, misfit, row_major, survey


@given(st.dictionaries(st.sampled_from(["pp", "dp", "cp", "tp", "ep"]), st.integers(1, 4), min_size=1))
def test_ranks_and_coordinates_are_one_to_one(mesh: dict[str, int]) -> None:
    world = prod(mesh.values())
    coordinates = row_major(mesh, world)
    assert sorted(coordinates) == list(range(world))
    assert len({tuple(place.values()) for place in coordinates.values()}) == world
    assert all(list(place) == list(mesh) for place in coordinates.values())
    assert all(place[axis] < mesh[axis] for place in coordinates.values() for axis in mesh)


def test_the_last_axis_varies_fastest() -> None:
    assert row_major({"pp": 2, "tp": 2}, 4)[1] == {"pp": 0, "tp": 1}


def test_an_axis_that_borrows_ranks_leaves_coordinates_to_the_loop() -> None:
    topology = survey({"dp": 2, "ep": 2}, None, {"dp": 1, "ep": 1}, rank=1, world=2)
    assert topology.mesh == {"dp": 2, "ep": 2}
    assert topology.coordinates == {1: {"dp": 1, "ep": 1}}
    assert topology.groups == []


@pytest.mark.usefixtures("alone")
def test_a_mesh_axis_over_the_world_is_the_default_group() -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    topology = survey(mesh, None, None, rank=0, world=1)
    assert topology.coordinates == {0: {"dp": 0}}
    assert topology.groups == [GroupEntry(mesh.get_group().group_name, [0], ["dp"], "default_pg")]


@pytest.mark.usefixtures("alone")
def test_equal_ranks_in_different_groups_stay_apart() -> None:
    dispatch = dist.new_group([0], group_desc="mesh_ep")
    shared = dist.new_group([0], group_desc="mine")
    nameless = dist.new_group([0], group_desc="log")
    topology = survey(None, {"dp": dist.group.WORLD, ("dp_shard", "cp"): [shared], "tp": None}, None, rank=0, world=1)
    axes = {group.name: group.axes for group in topology.groups}
    assert axes == {
        dist.group.WORLD.group_name: ["dp"],
        dispatch.group_name: ["ep"],
        shared.group_name: ["dp_shard", "cp"],
        nameless.group_name: [],
    }


@pytest.mark.usefixtures("alone")
def test_several_meshes_are_combined() -> None:
    dense = init_device_mesh("cpu", (1, 1), mesh_dim_names=("pp", "dp"))
    sparse = init_device_mesh("cpu", (1, 1), mesh_dim_names=("pp", "ep"))
    topology = survey([dense, sparse], None, None, rank=0, world=1)
    assert list(topology.mesh) == ["pp", "dp", "ep"]
    assert topology.coordinates == {0: {"pp": 0, "dp": 0, "ep": 0}}


@pytest.mark.usefixtures("alone")
def test_a_mesh_without_names_is_refused() -> None:
    with pytest.raises(ValueError, match="mesh_dim_names"):
        check_mesh(DeviceMesh("cpu", [0]))


def test_a_mesh_that_does_not_fit_the_world_is_reported() -> None:
    assert misfit({"dp": 8}, world=1) == "the mesh dp=8 does not fit a job of 1 process; it is left out"
    assert misfit({"pp": 2, "dp": 2, "ep": 2}, world=4) == ""
    assert "does not fit" in misfit({"dp": 1, "ep": 8}, world=1)
    assert misfit({"tp": 2}, world=8) == "", "a mesh of some axes"
