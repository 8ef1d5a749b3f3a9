"""Do experts multiply alike in one kernel and one by one?"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from trainer.device import multiplies_groups
from trainer.model.experts import one_by_one


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
