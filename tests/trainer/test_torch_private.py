"""Does the trainer do without each private part of torch? Each is taken away in turn."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer import watchdog
from trainer.foundation import torch_private

FILE = Path(torch_private.__file__)


def loaded_anew() -> Any:
    """Load the module beside the one in use, in torch as it is now."""
    spec = importlib.util.spec_from_file_location("torch_private_anew", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ours", "new", "old"),
    [
        ("all_gather_single", "all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_single", "reduce_scatter_tensor"),
    ],
)
def test_the_older_name_of_a_collective_serves(monkeypatch: pytest.MonkeyPatch, ours: str, new: str, old: str) -> None:
    assert getattr(torch_private, ours) is (getattr(dist, new, None) or getattr(dist, old))
    monkeypatch.delattr(dist, new, raising=False)
    assert getattr(loaded_anew(), ours) is getattr(dist, old)


def test_gathers_stay_where_they_are_without_the_setter() -> None:
    class Unit(torch.nn.Module):
        asynchronous = False

        def _set_unshard_async_op(self, wanted: bool) -> None:
            self.asynchronous = wanted

    unit = Unit()
    assert torch_private.gather_asynchronously(unit)
    assert unit.asynchronous
    assert not torch_private.gather_asynchronously(torch.nn.Linear(1, 1))


def test_nobody_is_watched_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_get_default_store")
    assert torch_private.default_store() is None
    with pytest.raises(RuntimeError, match="as it was"), watchdog.watched(0, 2):
        raise RuntimeError("as it was")


def test_gradients_are_summed_outside_of_a_backward(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about a mesh of one
            module = fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)))
        module.set_requires_gradient_sync(False)
        module(torch.ones(1, 2, requires_grad=True)).sum().backward()
        assert module.weight.grad is None
        torch_private.reduce_gradients(module)
        assert torch.equal(module.weight.grad.to_local(), torch.ones(2, 2))
    finally:
        dist.destroy_process_group()
