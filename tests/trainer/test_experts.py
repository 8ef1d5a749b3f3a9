"""Do experts multiply alike in one kernel and one by one?"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from trainer_fleet import COMMON

from trainer.build import build_stage, wanted_groups
from trainer.device import multiplies_groups
from trainer.injection import Faults
from trainer.model.experts import one_by_one
from trainer.options import parse
from trainer.parallel.mesh import Mesh
from trainer.rules import settle


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[1, 0, 5], [2, 2, 2], [0, 6, 0]])
def test_each_run_is_multiplied_by_its_own_matrix(dtype: torch.dtype, lengths: list[int]) -> None:
    assert multiplies_groups(torch.device("cpu"), dtype)
    x = torch.randn(6, 8, dtype=dtype, requires_grad=True)
    weights = torch.randn(3, 8, 16, dtype=dtype, requires_grad=True)
    ends = torch.tensor(lengths).cumsum(0).to(torch.int32)
    expected, found = F.grouped_mm(x, weights, offs=ends), one_by_one(x, weights, lengths)
    grad = torch.randn_like(expected)
    for near, true in zip(
        (found, *torch.autograd.grad(found, [x, weights], grad)),
        (expected, *torch.autograd.grad(expected, [x, weights], grad)),
        strict=True,
    ):
        assert torch.allclose(near, true, rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_an_expert_without_tokens_has_no_gradient() -> None:
    x, weights = torch.randn(0, 7, requires_grad=True), torch.randn(3, 7, 5, requires_grad=True)
    out = one_by_one(x, weights, [0, 0, 0])
    assert out.shape == (0, 5)
    out.sum().backward()
    assert not weights.grad.any()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_tokens_are_counted_once_however_often_forward_runs(recompute: str) -> None:
    settled = settle(parse([*COMMON.split(), "--experts", "4", "--recompute", recompute]), 1)
    mesh = Mesh.build(settled.layout, 0, wanted_groups(settled) - {"log"})
    stage = build_stage(settled, mesh, torch.device("cpu"), Faults(settled, 0), 0)
    tokens = torch.zeros(2, settled.shape.sequence, dtype=torch.int64)
    stage(tokens).sum().backward()
    for layer in stage.layers.values():
        assert layer.ffn.load.sum() == tokens.numel() * settled.shape.top_k
