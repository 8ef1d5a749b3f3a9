"""Values declared by the Lightning adapter if ranks share a batch; a real run is in test_programs.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

pytest.importorskip("lightning")

from usp_prof.record.adapters import lightning as adapter


def declared(strategy: dict[str, Any], loader: object, **given: Any) -> Any:
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(**strategy),
        train_dataloader=loader,
        precision="bf16-mixed",
        accumulate_grad_batches=3,
    )
    return adapter.declared(trainer, given)  # type: ignore[arg-type]


def test_ranks_of_a_tensor_parallel_group_share_their_batch() -> None:
    strategy = {"distributed_sampler_kwargs": {"num_replicas": 2, "rank": 0}, "world_size": 8}
    declaration = declared(strategy, SimpleNamespace(batch_size=4), sequence=16)
    assert (declaration["micro_batch_tokens"], declaration["tokens_per_step"]) == (4 * 16, 4 * 16 * 3 * 2)
    assert declaration["dtype"] == "bf16"


def test_a_single_device_has_one_batch_at_a_time() -> None:
    loader = SimpleNamespace(batch_size=None, batch_sampler=SimpleNamespace(batch_size=5))
    assert declared({}, loader, sequence=16)["tokens_per_step"] == 5 * 16 * 3


def test_tokens_are_not_guessed() -> None:
    assert "tokens_per_step" not in declared({}, SimpleNamespace(batch_size=4))
    assert "tokens_per_step" not in declared({}, [SimpleNamespace(batch_size=4)], sequence=16)


@pytest.mark.usefixtures("alone")
def test_the_mesh_comes_from_the_strategy_if_it_has_one() -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(device_mesh=mesh))
    module: Any = torch.nn.Linear(2, 2)
    assert adapter.layout_of(trainer, module).mesh == {"dp_shard": 1, "tp": 1}
    trainer.strategy.device_mesh = None
    assert adapter.layout_of(trainer, module).mesh == {"dp": 1}
