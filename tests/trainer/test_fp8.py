"""8-bit products: close to the exact product."""

from __future__ import annotations

import torch

from trainer.foundation import fp8
from trainer.foundation.weight_gradients import multiply


def test_the_fp8_product_and_its_gradients_are_close() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(4, 16, 32, dtype=torch.bfloat16)
    exact = torch.nn.functional.linear(x, weight)
    expected = torch.autograd.grad(exact, [x, weight], grad)
    coarse = multiply(x, weight, fp8.PRODUCT, None)
    gradients = torch.autograd.grad(coarse, [x, weight], grad)
    for near, true in zip((coarse, *gradients), (exact, *expected), strict=True):
        error = (near.float() - true.float()).norm() / true.float().norm()
        assert 0 < error < 0.1  # rounding changes it, but only slightly


def test_sizes_without_an_fp8_kernel_are_not_quantized() -> None:
    x, weight = torch.randn(3, 5, 7), torch.randn(11, 7)
    assert torch.equal(fp8.PRODUCT.forward(x, weight), torch.nn.functional.linear(x, weight))
