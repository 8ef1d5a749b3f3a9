"""Trainer on versions of torch that lack the newer names of collectives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from trainer.parallel import collectives

FILE = Path(collectives.__file__)


def loaded_again() -> Any:
    """Load a second copy of the module, with torch in its current state."""
    spec = importlib.util.spec_from_file_location("loaded_again", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up annotations there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ours", "new", "old"),
    [
        ("all_gather_single", "all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_single", "reduce_scatter_tensor"),
    ],
)
def test_the_older_name_of_a_collective_works(monkeypatch: pytest.MonkeyPatch, ours: str, new: str, old: str) -> None:
    assert getattr(collectives, ours) is (getattr(dist, new, None) or getattr(dist, old))
    monkeypatch.delattr(dist, new, raising=False)
    assert getattr(loaded_again(), ours) is getattr(dist, old)
