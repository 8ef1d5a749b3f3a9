"""What does fused attention cost? Two products forward, five backward (scores are made again), over what is seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from usp_prof.analyses._formulas.cost import Cost, Family, Formula, Shapes

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD_PRODUCTS = 2
BACKWARD_PRODUCTS = 5


@dataclass(frozen=True, slots=True)
class Signature:
    """Where an attention op's inputs stand: the first of query, key, value; the causal flag; which dim is the heads.

    `lengths` is the place of the sequences' bounds of packed batches: with them the lengths are not in the shapes.
    """

    first: int
    causal: int
    heads: int = 1
    lengths: int = -1
    mask_kind: bool = False


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
        pairs = _seen(rows, columns) if _is_causal(shapes, signature) else float(rows * columns)
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


def _seen(rows: int, columns: int) -> float:
    """Count the pairs that a causal mask leaves: half of the square, and all of the keys before it."""
    if rows > columns:
        return columns * columns / 2
    return rows * (columns - rows) + rows * rows / 2


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
    "aten::_flash_attention_forward": _forward(0, 8, heads=2, lengths=3),
    "aten::_efficient_attention_forward": _forward(0, 9, heads=2, lengths=4, mask_kind=True),
    "flash_attn::_flash_attn_forward": _forward(0, 5, heads=2),
    "aten::_scaled_dot_product_flash_attention_backward": _backward(1, 11),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward(1, 7),
    "aten::_scaled_dot_product_efficient_attention_backward": _backward(1, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _backward(1, 14),
    "aten::_flash_attention_backward": _backward(1, 11, heads=2, lengths=6),
    "aten::_efficient_attention_backward": _backward(1, 14, heads=2, lengths=6, mask_kind=True),
    "flash_attn::_flash_attn_backward": _backward(1, 11, heads=2),
}
