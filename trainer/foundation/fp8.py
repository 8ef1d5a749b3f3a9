"""FP8 products: each factor is scaled to the range of its 8-bit format, and the product is scaled back.

Weights and activations are E4M3, gradients E5M2. Each tensor has one scale, computed from its current values. Sums are
bf16 or wider, and the master weights stay fp32. `rules` refuses fp8 on GPUs before Ada.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from trainer.foundation.weight_gradients import Product

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
UNIT = 16
"""Kernels need sizes that are multiples of this."""


def quantize(x: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in fp8 and the scale that undoes the quantization."""
    scale = (x.abs().amax().float() / torch.finfo(kind).max).clamp(min=1e-12)
    return (x.float() / scale).to(kind), scale


def multiply(left: torch.Tensor, right: torch.Tensor, kinds: tuple[torch.dtype, torch.dtype]) -> torch.Tensor:
    """Multiply ``[..., k]`` by ``[n, k]`` transposed in fp8, or in the tensors' own type if the sizes do not fit."""
    if any(size % UNIT for size in (left.numel() // left.shape[-1], *right.shape)):
        return F.linear(left, right)
    (left_8, left_scale), (right_8, right_scale) = quantize(left.flatten(0, -2), kinds[0]), quantize(right, kinds[1])
    product = F.scaled_mm(
        left_8.contiguous(),  # kernels need contiguous rows of the first and columns of the second
        right_8.contiguous().t(),
        left_scale,
        F.ScalingType.TensorWise,
        right_scale,
        F.ScalingType.TensorWise,
        output_dtype=left.dtype,
    )
    return product.view(*left.shape[:-1], -1)


PRODUCT = Product(
    forward=lambda x, weight: multiply(x, weight, (FORWARD, FORWARD)),
    input_gradient=lambda grad, weight: multiply(grad, weight.t(), (BACKWARD, FORWARD)),
    weight_gradient=lambda grad, x: multiply(grad.flatten(0, -2).t(), x.flatten(0, -2).t(), (BACKWARD, FORWARD)),
    is_differentiable=False,
)
