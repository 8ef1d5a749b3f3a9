"""Does the trainer do without each private part of torch? Each is taken away in turn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules

from trainer import alive, torch_private

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
    with pytest.raises(RuntimeError, match="as it was"), alive.watched(0, 2):
        raise RuntimeError("as it was")


def order_of(kind: type) -> list[Any]:
    schedule = object.__new__(kind)
    schedule.pp_group_size, schedule._n_microbatches = 4, 8
    return schedule._calculate_single_rank_operations(1)


def test_a_pair_of_dualpipev_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, list[Any]] = {}
    monkeypatch.setattr(
        schedules.ScheduleDualPipeV, "_prepare_schedule_with_comms", lambda _, actions, *__: given.update(actions)
    )
    whole = order_of(schedules.ScheduleDualPipeV)
    pairs = [action for action in whole if getattr(action, "sub_actions", None)]
    object.__new__(torch_private.DualPipeV)._prepare_schedule_with_comms({1: [None, *whole]})
    assert len(given[1]) == 1 + len(whole) + len(pairs) > 1 + len(whole)
    assert [part for pair in pairs for part in pair.sub_actions] == [
        action for action in given[1] if any(action in pair.sub_actions for pair in pairs)
    ]
