"""Experts: one grouped kernel gives the result of separate products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from trainer_fleet import COMMON

from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.model.experts import multiplies_groups, multiply_runs
from trainer.parallel.collectives import Group
from trainer.parallel.expert_parallel import Slots
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[1, 0, 5], [2, 2, 2], [0, 6, 0]])
def test_each_group_is_multiplied_by_its_own_matrix(dtype: torch.dtype, lengths: list[int]) -> None:
    assert multiplies_groups(torch.device("cpu"), dtype)
    x = torch.randn(6, 8, dtype=dtype, requires_grad=True)
    weights = torch.randn(3, 8, 16, dtype=dtype, requires_grad=True)
    ends = torch.tensor(lengths).cumsum(0).to(torch.int32)
    expected, result = F.grouped_mm(x, weights, offs=ends), multiply_runs(x, weights, lengths)
    grad = torch.randn_like(expected)
    for near, true in zip(
        (result, *torch.autograd.grad(result, [x, weights], grad)),
        (expected, *torch.autograd.grad(expected, [x, weights], grad)),
        strict=True,
    ):
        assert torch.allclose(near, true, rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_an_expert_without_tokens_has_no_gradient() -> None:
    x, weights = torch.randn(0, 7, requires_grad=True), torch.randn(3, 7, 5, requires_grad=True)
    out = multiply_runs(x, weights, [0, 0, 0])
    assert out.shape == (0, 5)
    out.sum().backward()
    assert not weights.grad.any()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_tokens_are_counted_once_even_with_recomputation(recompute: str) -> None:
    config = resolve(parse([*COMMON.split(), "--experts", "4", "--recompute", recompute]), 1)
    mesh = Mesh.build(config.layout, 0, wanted_groups(config) - {"log"})
    stage = build(config, mesh, torch.device("cpu"), Faults(config, 0)).chunks[0]
    tokens = torch.zeros(2, config.shape.sequence, dtype=torch.int64)
    stage(tokens).sum().backward()
    for layer in stage.layers.values():
        assert layer.ffn.load.sum() == tokens.numel() * config.shape.top_k


def slots_of(chosen: list[int], experts: int, size: int) -> Slots:
    expert = torch.tensor(chosen).unsqueeze(1)
    load = torch.bincount(expert.flatten(), minlength=experts)
    return Slots.plan(expert, load, size, Group("ep", (), (0,), 0, None))


def test_tokens_beyond_the_capacity_are_dropped_and_give_zeros() -> None:
    slots = slots_of([0, 1, 0, 0, 1], experts=2, size=2)
    assert slots.slot.tolist() == [0, 2, 1, 4, 3]
    tokens = torch.arange(1.0, 6).unsqueeze(1).requires_grad_()
    arrived = slots.dispatch(tokens, 1)
    assert arrived.squeeze(2).tolist() == [[1, 3], [2, 5]]
    returned = slots.combine(arrived * 10)
    assert returned.flatten().tolist() == [10, 20, 30, 0, 50]
    returned.sum().backward()
    assert tokens.grad.flatten().tolist() == [10, 10, 10, 0, 10]


def test_unused_slots_are_empty() -> None:
    assert slots_of([1, 1], experts=3, size=1).dispatch(torch.ones(2, 1), 1).flatten().tolist() == [0, 1, 0]


@pytest.mark.parametrize(("options", "dropped"), [("--capacity 2", 0), ("--capacity 0.5", 0.5)])
def test_dropped_tokens_are_counted_once(options: str, dropped: float) -> None:
    config = resolve(parse([*COMMON.split(), *f"--experts 4 --recompute full {options}".split()]), 1)
    mesh = Mesh.build(config.layout, 0, wanted_groups(config) - {"log"})
    update = build(config, mesh, torch.device("cpu"), Faults(config, 0))
    outcome = update(0, Batches(config, mesh.place, torch.device("cpu")).update(0))
    share = float(outcome.dropped / outcome.load.sum())
    assert share == 0 if dropped == 0 else dropped <= share < dropped + 0.1
