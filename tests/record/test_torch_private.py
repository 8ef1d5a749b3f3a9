"""Recorder without each private part of torch, removed one by one."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from usp_prof.record import _torch_private as private


def test_marks_are_always_made_if_the_profilers_state_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not private.profiler_enabled()
    monkeypatch.delattr(torch.autograd, "_profiler_enabled")
    spec = importlib.util.spec_from_file_location("torch_private_anew", private.__file__)
    assert spec is not None
    assert spec.loader is not None
    anew: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    assert anew.profiler_enabled()


@pytest.mark.usefixtures("alone")
def test_without_the_private_function_of_torch_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.default_store() is not None
    monkeypatch.delattr(c10d, "_get_default_store")
    assert private.default_store() is None


@pytest.mark.usefixtures("alone")
def test_without_a_list_of_groups_the_world_is_the_only_group(monkeypatch: pytest.MonkeyPatch) -> None:
    other = dist.new_group([0], group_desc="other")
    assert private.local_groups() == [dist.group.WORLD, other]
    world = dist.group.WORLD
    monkeypatch.setattr(dist, "group", type("Group", (), {"WORLD": world}))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with monkeypatch.context() as without:
        without.delattr(c10d, "_world")
        assert private.local_groups() == [world]


@pytest.mark.usefixtures("alone")
def test_the_flight_recorder_may_be_missing_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.flight_entries() is not None
    monkeypatch.delattr(torch._C._distributed_c10d, "_dump_fr_trace")
    assert private.flight_entries() is None
