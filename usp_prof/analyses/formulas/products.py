"""Matrix products, convolutions and fused attention: FLOP and bytes from their shapes.

A product of (rows, inner) and (inner, columns) computes 2 x rows x inner x columns. Both factors are read and the
result is written once. A convolution computes 2 x outputs x the window that each output sees. Fused attention is two
products forward and five backward (scores are recomputed), over the keys that each query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from usp_prof.analyses.formulas.cost import Cost, Family, Formula, Shapes
from usp_prof.model.hardware import Precision


def _product(left: int) -> Callable[[Shapes], Cost]:
    """Return the formula of a product of two matrices, batched or not; `left` is the index of the left factor."""

    def formula(shapes: Shapes) -> Cost:
        left_dims, right_dims = shapes.tensor(left), shapes.tensor(left + 1)
        *batch, rows, inner = left_dims
        columns = right_dims[-1]
        if right_dims[-2] != inner:
            raise ValueError("factors do not fit")
        return _cost(shapes, left, prod(batch), rows, inner, columns)

    return formula


def _matmul(shapes: Shapes) -> Cost:
    """Return the cost of `torch.matmul`: all leading dims are rows if the other factor is a single matrix."""
    left_dims, right_dims = shapes.tensor(0), shapes.tensor(1)
    if len(right_dims) != 2:
        return _product(0)(shapes)
    if right_dims[0] != left_dims[-1]:
        raise ValueError("factors do not fit")
    return _cost(shapes, 0, 1, prod(left_dims[:-1]), left_dims[-1], right_dims[1])


def _linear(shapes: Shapes) -> Cost:
    """Return the cost of multiplying any number of rows by a transposed weight."""
    *batch, inner = shapes.tensor(0)
    columns, fits = shapes.tensor(1)
    if fits != inner:
        raise ValueError("factors do not fit")
    return _cost(shapes, 0, 1, prod(batch), inner, columns)


def _vector(left: int) -> Callable[[Shapes], Cost]:
    def formula(shapes: Shapes) -> Cost:
        rows, inner = shapes.tensor(left)
        return _cost(shapes, left, 1, rows, inner, 1)

    return formula


def _dot(shapes: Shapes) -> Cost:
    return _cost(shapes, 0, 1, 1, shapes.tensor(0)[0], 1)


def _grouped(shapes: Shapes) -> Cost:
    """Return the cost of one product per group. Groups divide the rows, the columns or the inner size."""
    left_dims, right_dims = shapes.tensor(0), shapes.tensor(1)
    groups = (
        len(shapes.dims) > 2
        and len(left_dims) == len(right_dims) == 2
        and next((d[0] for d in shapes.dims[2:] if d), 1)
    )
    flop = 2.0 * prod(left_dims) * right_dims[-1]
    if len(left_dims) == 3 and len(right_dims) == 2:
        flop = 2.0 * left_dims[1] * left_dims[2] * right_dims[-1]  # the groups divide the columns
    width = shapes.element(0)
    result = _result_size(left_dims, right_dims, int(groups or 1))
    moved = width * (prod(left_dims) + prod(right_dims)) + max(width, 2) * result
    return Cost(Family.PRODUCT, flop, moved, shapes.precision(0))


def _result_size(left: list[int], right: list[int], groups: int) -> int:
    if len(left) == 2 and len(right) == 2:
        return groups * left[0] * right[-1]
    rows = left[0] * left[1] if len(left) == 3 and len(right) == 3 else left[-2]
    return rows * right[-1]


def _cost(shapes: Shapes, left: int, batch: int, rows: int, inner: int, columns: int) -> Cost:
    width = shapes.element(left)
    kind = shapes.precision(left)
    # Factors of 8 bits give a result of at least 16 bits.
    result = 2 if kind is Precision.FP8 else 4 if width == 1 else width
    moved = width * (rows * inner + inner * columns) + result * rows * columns
    return Cost(Family.PRODUCT, 2.0 * batch * rows * inner * columns, float(batch * moved), kind)


def _convolution(padding: int, stride: int, dilation: int, transposed: int = -1) -> Callable[[Shapes], Cost | None]:
    """Return the formula of a forward convolution; the arguments are the indexes of its settings."""

    def formula(shapes: Shapes) -> Cost | None:
        image, weight = shapes.tensor(0), shapes.tensor(1)
        if transposed >= 0 and shapes.flag(transposed):
            # Each input is multiplied with the whole window, regardless of the output size.
            outputs, written = prod(image), 0
        else:
            settings = (shapes.numbers(place) for place in (padding, stride, dilation))
            sizes = _output_sizes(image, weight, *settings)
            outputs = written = image[0] * weight[0] * prod(sizes)
        moved = shapes.element(0) * (prod(image) + prod(weight) + written)
        return Cost(Family.CONVOLUTION, 2.0 * outputs * prod(weight[1:]), float(moved), shapes.precision(0))

    return formula


def _output_sizes(
    image: list[int], weight: list[int], padding: list[int], stride: list[int], dilation: list[int]
) -> list[int]:
    """Return the output sizes. A setting with a single value applies to every dimension."""
    count = len(weight) - 2
    pads, steps, gaps = ((given * count)[:count] for given in (padding, stride, dilation))
    return [
        (size + 2 * pad - gap * (window - 1) - 1) // step + 1
        for size, window, pad, step, gap in zip(image[2:], weight[2:], pads, steps, gaps, strict=True)
    ]


def _convolution_backward(shapes: Shapes) -> Cost:
    """Return the cost of one convolution per requested gradient (input and weight)."""
    output, image, weight = (shapes.tensor(place) for place in range(3))
    mask = shapes.values[10].lower()
    gradients = sum(part.strip() == "true" for part in mask.strip("[]").split(",")[:2])
    flop = 2.0 * prod(output) * prod(weight[1:]) * gradients
    moved = shapes.element(0) * (1 + gradients) * (prod(output) + prod(image) + prod(weight)) / 2
    return Cost(Family.CONVOLUTION, flop, moved, shapes.precision(0))


def _attention(
    first: int,
    causal: int,
    *,
    heads: int = 1,
    lengths: int | None = None,
    mask_kind: bool = False,
    window: int | None = None,
    backward: bool = False,
) -> Formula:
    """Return the formula of an attention op from the indexes of its inputs and the dim of its heads.

    `first` is the first of query, key and value. `causal` is the causal flag or, with `mask_kind`, a kind of mask.
    `lengths` is the sequence bounds of packed batches; if they are given, the shapes lack the lengths. `window` is the
    number of keys visible before a query; the next input is the number after it. Without one, or if it is negative, all
    keys are visible.
    """

    def formula(shapes: Shapes) -> Cost | None:
        query, key, value = (shapes.tensor(first + place) for place in range(3))
        is_packed = lengths is not None and lengths < len(shapes.dims) and shapes.dims[lengths]
        if is_packed or len(query) != 4:
            return None
        before, after = (-1, -1) if window is None else (_size(shapes, window), _size(shapes, window + 1))
        if int(shapes.values[causal]) > 0 if mask_kind else shapes.flag(causal):
            after = 0
        pairs = _seen(query[3 - heads], key[3 - heads], before, after)
        widths = 3 * query[3] + 2 * value[3] if backward else query[3] + value[3]
        flop = 2.0 * query[0] * query[heads] * pairs * widths
        tensors = prod(query) + prod(key) + prod(value) + prod(query[:3]) * value[3]
        # Backward reads all of these and the output's gradient, and writes three gradients.
        moved = 2 * tensors if backward else tensors
        return Cost(Family.ATTENTION, flop, float(shapes.element(first) * moved), shapes.precision(first))

    return formula


def _size(shapes: Shapes, place: int) -> int:
    """Return an input that is the number of keys on one side of a window; -1 if it is not recorded."""
    size = shapes.values[place] if place < len(shapes.values) else ""
    return int(size) if size.lstrip("-").isdigit() else -1


def _seen(rows: int, columns: int, before: int, after: int) -> float:
    """Return the number of (query, key) pairs that a mask leaves. The queries are aligned with the last keys.

    A query at key position p sees keys p - before to p + after. The causal diagonal counts half, as is usual.
    """
    before = -1 if before >= columns - 1 else before
    if before < 0 and after < 0:
        return float(rows * columns)
    if before < 0 and after == 0:
        return columns * columns / 2 if rows > columns else rows * (columns - rows) + rows * rows / 2
    position = np.arange(rows) + (columns - rows)
    first = np.maximum(position - before, 0) if before >= 0 else np.zeros(rows)
    last = np.minimum(position + after, columns - 1) if after >= 0 else np.full(rows, columns - 1)
    return float(np.maximum(last - first + 1, 0).sum())


FORMULAS: dict[str, Formula] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::matmul": _matmul,
    "aten::_int_mm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::_scaled_mm_v2": _product(0),
    "aten::addmm": _product(1),
    "aten::addmm_": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::baddbmm": _product(1),
    "aten::baddbmm_": _product(1),
    "aten::addbmm": _product(1),
    "aten::linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::mv": _vector(0),
    "aten::addmv": _vector(1),
    "aten::addmv_": _vector(1),
    "aten::dot": _dot,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm_v2": _grouped,
    "aten::grouped_mm": _grouped,
    "aten::cudnn_convolution": _convolution(2, 3, 4),
    "aten::miopen_convolution": _convolution(3, 4, 5),
    "aten::mkldnn_convolution": _convolution(3, 4, 5),
    "aten::convolution": _convolution(4, 3, 5, transposed=6),
    "aten::_convolution": _convolution(4, 3, 5, transposed=6),
    "aten::convolution_overrideable": _convolution(4, 3, 5, transposed=6),
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "aten::_cudnn_attention_forward": _attention(0, 10, lengths=4),
    "aten::_flash_attention_forward": _attention(0, 8, heads=2, lengths=3, window=11),
    "aten::_efficient_attention_forward": _attention(0, 9, heads=2, lengths=4, mask_kind=True),
    "flash_attn::_flash_attn_forward": _attention(0, 5, heads=2, window=6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 7, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, backward=True),
    "aten::_flash_attention_backward": _attention(1, 11, heads=2, lengths=6, window=15, backward=True),
    "aten::_efficient_attention_backward": _attention(1, 14, heads=2, lengths=6, mask_kind=True, backward=True),
    "flash_attn::_flash_attn_backward": _attention(1, 11, heads=2, window=12, backward=True),
}
