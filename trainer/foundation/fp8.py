"""FP8 products: each factor is scaled to the range of its 8-bit format, and the product is scaled back.

Weights and activations are E4M3, gradients E5M2; scales are those of the moment, one for each tensor. Sums are bf16
or better, and the master weights stay fp32. It takes a GPU from Ada on; elsewhere `rules` refuses it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from trainer.foundation.weight_gradients import LINEAR, Product

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
UNIT = 16
"""Kernels want sizes that are multiples of this."""


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply by a weight in fp8, or in the tensor's own type if sizes do not fit the kernels."""
    if not fits(x, weight):
        return F.linear(x, weight)
    return product(x.flatten(0, -2), weight, (FORWARD, FORWARD)).view(*x.shape[:-1], -1)


def fits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether the kernels support the sizes of a product: its rows, and both sizes of the weight."""
    return not any(size % UNIT for size in (left.numel() // left.shape[-1], *right.shape))


def quantize(x: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in fp8 and the scale that undoes the quantization."""
    scale = (x.abs().amax().float() / torch.finfo(kind).max).clamp(min=1e-12)
    return (x.float() / scale).to(kind), scale


def product(left: torch.Tensor, right: torch.Tensor, kinds: tuple[torch.dtype, torch.dtype]) -> torch.Tensor:
    """Multiply ``[m, k]`` by ``[n, k]`` transposed."""
    (left_8, left_scale), (right_8, right_scale) = quantize(left, kinds[0]), quantize(right, kinds[1])
    return F.scaled_mm(
        left_8.contiguous(),  # kernels need contiguous rows of the first and columns of the second
        right_8.contiguous().t(),
        left_scale,
        F.ScalingType.TensorWise,
        right_scale,
        F.ScalingType.TensorWise,
        output_dtype=left.dtype,
    )


def input_gradient(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input."""
    if not fits(grad, weight):
        return LINEAR.input_gradient(grad, weight)
    return product(grad.flatten(0, -2), weight.t(), (BACKWARD, FORWARD)).view(*grad.shape[:-1], -1)


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the weight."""
    rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
    if not fits(rows.t(), inputs.t()):
        return LINEAR.weight_gradient(grad, x)
    return product(rows.t(), inputs.t(), (BACKWARD, FORWARD))


PRODUCT = Product(linear, input_gradient, weight_gradient, is_differentiable=False)
