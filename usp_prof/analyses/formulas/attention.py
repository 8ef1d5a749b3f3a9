"""What does fused attention cost? Two products forward, five backward (scores are made again), over what is seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.formulas.cost import Cost, Family, Formula, Shapes

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD_PRODUCTS = 2
BACKWARD_PRODUCTS = 5


@dataclass(frozen=True, slots=True)
class Signature:
    """Where an attention op's inputs stand: the first of query, key, value; the causal flag; which dim is the heads.

    `lengths` is the place of the sequences' bounds of packed batches: with them the lengths are not in the shapes.
    `window` is the place of the keys seen before and (next to it) after a query; none or negative: all of them.
    """

    first: int
    causal: int
    heads: int = 1
    lengths: int = -1
    mask_kind: bool = False
    window: int = -1


def _formula(signature: Signature, products: int) -> Callable[[Shapes], Cost | None]:
    """Make the formula of one attention op."""

    def formula(shapes: Shapes) -> Cost | None:
        if 0 <= signature.lengths < len(shapes.dims) and shapes.dims[signature.lengths]:
            return None
        query, key, value = (shapes.tensor(signature.first + place) for place in range(3))
        tokens = 3 - signature.heads if len(query) == 4 else -1
        if tokens < 0:
            return None
        rows, columns = query[tokens], key[tokens]
        before, after = _window(shapes, signature)
        if _is_causal(shapes, signature):
            after = 0
        pairs = _seen(rows, columns, before, after)
        widths = query[3] + value[3] if products == FORWARD_PRODUCTS else 3 * query[3] + 2 * value[3]
        flop = 2.0 * query[0] * query[signature.heads] * pairs * widths
        tensors = prod(query) + prod(key) + prod(value) + prod(query[:3]) * value[3]
        # Backward reads all of these and the output's gradient, and writes three gradients.
        moved = tensors if products == FORWARD_PRODUCTS else 2 * tensors
        width = shapes.element(signature.first)
        return Cost(Family.ATTENTION, flop, float(width * moved), shapes.precision(signature.first))

    return formula


def _is_causal(shapes: Shapes, signature: Signature) -> bool:
    if signature.mask_kind:
        return int(shapes.values[signature.causal]) > 0
    return shapes.flag(signature.causal)


def _window(shapes: Shapes, signature: Signature) -> tuple[int, int]:
    """Give how many keys before and after its own a query sees; -1 where all."""
    places = (signature.window, signature.window + 1)
    sizes = [shapes.values[place] if 0 <= place < len(shapes.values) else "" for place in places]
    before, after = (int(size) if size.lstrip("-").isdigit() else -1 for size in sizes)
    return (before, after) if signature.window >= 0 else (-1, -1)


def _seen(rows: int, columns: int, before: int, after: int) -> float:
    """Count the pairs of query and key that a mask leaves; queries stand at the end of the keys.

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


def _forward(first: int, causal: int, **more: int | bool) -> Formula:
    return _formula(Signature(first, causal, **more), FORWARD_PRODUCTS)  # type: ignore[arg-type]


def _backward(first: int, causal: int, **more: int | bool) -> Formula:
    return _formula(Signature(first, causal, **more), BACKWARD_PRODUCTS)  # type: ignore[arg-type]


FORMULAS: dict[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention": _forward(0, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _forward(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _forward(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _forward(0, 6),
    "aten::_cudnn_attention_forward": _forward(0, 10, lengths=4),
    "aten::_flash_attention_forward": _forward(0, 8, heads=2, lengths=3, window=11),
    "aten::_efficient_attention_forward": _forward(0, 9, heads=2, lengths=4, mask_kind=True),
    "flash_attn::_flash_attn_forward": _forward(0, 5, heads=2, window=6),
    "aten::_scaled_dot_product_flash_attention_backward": _backward(1, 11),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward(1, 7),
    "aten::_scaled_dot_product_efficient_attention_backward": _backward(1, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _backward(1, 14),
    "aten::_flash_attention_backward": _backward(1, 11, heads=2, lengths=6, window=15),
    "aten::_efficient_attention_backward": _backward(1, 14, heads=2, lengths=6, mask_kind=True),
    "flash_attn::_flash_attn_backward": _backward(1, 11, heads=2, window=12),
}
