"""What must an op without matrix products move? Every input read and every output written once."""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

from usp_prof.analyses._formulas.cost import Cost, Family, Formula, Shapes
from usp_prof.model.hardware import element_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ELEMENTWISE = """
add add_ sub sub_ mul mul_ div div_ neg abs exp exp_ log sqrt sqrt_ rsqrt pow reciprocal sigmoid sigmoid_ tanh relu
relu_ gelu silu silu_ where clamp clamp_ clamp_min clamp_min_ clamp_max masked_fill masked_fill_ maximum minimum
eq ne lt le gt ge bitwise_and bitwise_or logical_not addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ sin cos copy_ _to_copy
clone native_dropout threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward
native_dropout_backward cumsum index_select gather tril triu
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_WRITES_ONLY = ("fill_", "zero_", "normal_", "uniform_")
_NORMS = """
native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_group_norm
native_group_norm_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward
miopen_batch_norm miopen_batch_norm_backward batch_norm_backward_reduce _softmax _log_softmax
_softmax_backward_data _log_softmax_backward_data
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_REDUCTIONS = """
sum mean amax amin max min argmax any all norm linalg_vector_norm nll_loss_forward var var_mean topk
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines


def tensors(shapes: Shapes) -> Iterator[tuple[list[int], int]]:
    """Give the dims and the bytes of every tensor among the inputs; lists of tensors have no type recorded."""
    for dims, kind in zip(shapes.dims, shapes.types, strict=False):
        width = element_bytes(kind)
        if dims and width:
            yield dims, prod(dims) * width


def _elementwise(family: Family) -> Callable[[Shapes], Cost | None]:
    def formula(shapes: Shapes) -> Cost | None:
        read = list(tensors(shapes))
        if not read:
            return None
        width = max(size // prod(dims) for dims, size in read if prod(dims))
        written = prod(_broadcast([dims for dims, _ in read])) * width
        return Cost(family, 0.0, float(sum(size for _, size in read) + written), shapes.precision(0))

    return formula


def _in_place(shapes: Shapes) -> Cost:
    """Read every input, and write the first."""
    return Cost(
        Family.ELEMENTWISE, 0.0, float(sum(size for _, size in tensors(shapes)) + shapes.size(0)), shapes.precision(0)
    )


def _copy(shapes: Shapes) -> Cost:
    """Write the first and read the second."""
    return Cost(Family.ELEMENTWISE, 0.0, float(shapes.size(0) + shapes.size(1)), shapes.precision(0))


def _write(shapes: Shapes) -> Cost:
    return Cost(Family.ELEMENTWISE, 0.0, float(shapes.size(0)), shapes.precision(0))


def _reduction(shapes: Shapes) -> Cost:
    return Cost(Family.REDUCTION, 0.0, float(sum(size for _, size in tensors(shapes))), shapes.precision(0))


def _norm(shapes: Shapes) -> Cost:
    """Read every input and write one as large as the largest."""
    sizes = [size for _, size in tensors(shapes)]
    return Cost(Family.NORM, 0.0, float(sum(sizes) + max(sizes)), shapes.precision(0))


def fused(shapes: Shapes) -> Cost | None:
    """Count every tensor that a generated kernel takes once: it reads or writes each."""
    moved = float(sum(size for _, size in tensors(shapes)))
    return Cost(Family.FUSED, 0.0, moved, None) if moved else None


def _broadcast(shapes: list[list[int]]) -> list[int]:
    """Give the dims that several dims have together."""
    sizes: list[Any] = [max(column) for column in zip_longest(*(dims[::-1] for dims in shapes), fillvalue=1)]
    return sizes[::-1]


FORMULAS: dict[str, Formula] = {
    **{f"aten::{name}": _elementwise(Family.ELEMENTWISE) for name in _ELEMENTWISE if not name.endswith("_")},
    **{f"aten::{name}": _in_place for name in _ELEMENTWISE if name.endswith("_")},
    **{f"aten::{name}": _write for name in _WRITES_ONLY},
    **{f"aten::{name}": _norm for name in _NORMS},
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    "aten::copy_": _copy,
}
