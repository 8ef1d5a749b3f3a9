"""Layout that the FSDP2 adapter reads from a module's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from usp_prof.record.adapters import fsdp2

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

pytestmark = pytest.mark.usefixtures("alone")

QUICK: dict[str, Any] = {"peak_flops": 1e9, "wait": 0, "warmup": 1, "active": 1}


def tensor_parallel(mesh: DeviceMesh) -> torch.nn.Linear:
    layer = torch.nn.Linear(4, 4)
    parallelize_module(layer, mesh, ColwiseParallel())
    return layer


def test_a_module_without_distributed_parameters_is_data_parallel() -> None:
    layout = fsdp2.layout_of(torch.nn.Linear(2, 2))
    assert (layout.mesh, layout.coordinates, layout.groups) == ({"dp": 1}, {"dp": 0}, {"dp": dist.group.WORLD})


def test_a_mesh_without_names_shards_data_with_fsdp2() -> None:
    layer = torch.nn.Linear(4, 4)
    fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    assert fsdp2.layout_of(layer).mesh == {"dp_shard": 1}


def test_a_mesh_without_names_is_not_an_axis_unless_the_model_is_fully_sharded() -> None:
    layout = fsdp2.layout_of(tensor_parallel(init_device_mesh("cpu", (1,))))
    assert (layout.mesh, layout.coordinates, layout.groups) == ({}, {}, {})


@pytest.mark.parametrize(
    ("dimension", "mesh", "served"),
    [
        ("tensor_parallel", {"tp": 1}, ["tp"]),
        ("fsdp", {"dp_shard": 1}, ["dp_shard"]),
        ("sp", {"cp": 1}, ["cp"]),
        ("dp_shard_cp", {}, [("dp_shard", "cp")]),
        ("own_name", {"own_name": 1}, ["own_name"]),
    ],
)
def test_dimensions_of_other_libraries_become_axes(dimension: str, mesh: dict[str, int], served: list[Any]) -> None:
    layout = fsdp2.layout_of(tensor_parallel(init_device_mesh("cpu", (1,), mesh_dim_names=(dimension,))))
    assert layout.mesh == mesh
    assert list(layout.groups) == served
    assert layout.coordinates == dict.fromkeys(mesh, 0)


@pytest.mark.parametrize(
    ("mesh", "world", "at_once"),
    [
        ({"dp_shard": 8}, 8, 8),
        ({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, 8, 4),
        ({"dp_shard": 2, "cp": 2, "tp": 2, "ep": 4}, 8, 2),
        ({"pp": 4, "dp": 2}, 8, 2),
        ({"tp": 2}, 8, 0),
    ],
)
def test_concurrent_micro_batches_are_counted(mesh: dict[str, int], world: int, at_once: int) -> None:
    assert fsdp2.batches_at_once(mesh, world) == at_once


def test_tokens_per_step_follow_from_tokens_per_pass(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 4)
    given: dict[str, Any] = {"micro_batch_tokens": 32, "gradient_accumulation": 3, **QUICK}
    with fsdp2.session(tmp_path / "counted", layer, **given) as session:
        assert session.manifest.tokens_per_step == 96
        session.advance()
        session.advance()


def test_the_configuration_of_a_wrapped_model_is_found() -> None:
    model = torch.nn.Linear(2, 2)
    model.config = {"layers": 1}  # type: ignore[assignment]
    wrapped = torch.nn.Module()
    wrapped.module = model
    assert fsdp2.model_of(wrapped) == fsdp2.model_of(model) == {"layers": 1}
    assert fsdp2.model_of(torch.nn.Linear(2, 2)) is None
