"""Trainer without each private part of torch, removed one by one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from trainer import watchdog
from trainer.foundation import torch_private
from trainer.parallel import collectives

FILE = Path(torch_private.__file__)


def loaded_anew(file: Path = FILE) -> Any:
    """Load a second copy of the module, with torch in its current state."""
    spec = importlib.util.spec_from_file_location("loaded_anew", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
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
    assert getattr(collectives, ours) is (getattr(dist, new, None) or getattr(dist, old))
    monkeypatch.delattr(dist, new, raising=False)
    assert getattr(loaded_anew(Path(collectives.__file__)), ours) is getattr(dist, old)


def test_nobody_is_watched_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_get_default_store")
    assert torch_private.default_store() is None
    with pytest.raises(RuntimeError, match="as it was"), watchdog.watched(0, 2):
        raise RuntimeError("as it was")
