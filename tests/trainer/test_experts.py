"""Do experts multiply what kernels take and what they do not take alike?"""

from __future__ import annotations

import pytest
import torch

from trainer.model import experts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 16), (8, 7), (7, 8)])
@pytest.mark.parametrize("ends", [(1, 1, 6), (0, 0, 0)])
def test_each_run_is_multiplied_by_its_own_matrix(
    dtype: torch.dtype, inputs: int, outputs: int, ends: tuple[int, ...]
) -> None:
    x = torch.randn(ends[-1], inputs, dtype=dtype, requires_grad=True)
    weights = torch.randn(3, inputs, outputs, dtype=dtype, requires_grad=True)
    expected = torch.cat([x[: ends[0]] @ weights[0], x[ends[0] : ends[1]] @ weights[1], x[ends[1] :] @ weights[2]])
    found = experts._grouped(x, weights, torch.tensor(ends, dtype=torch.int32))
    grad = torch.randn_like(expected)
    for near, true in zip(
        (found, *torch.autograd.grad(found, [x, weights], grad)),
        (expected, *torch.autograd.grad(expected, [x, weights], grad)),
        strict=True,
    ):
        assert torch.allclose(near, true, rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
