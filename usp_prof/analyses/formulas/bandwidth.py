"""Ops without matrix products: the bytes that they must move. They read every input and write every output once.

Views and allocations move nothing; all of their time is host time.

For ops on lists (fused and foreach optimizers, concatenation, FSDP's copies), profilers record the dims of a list's
tensors but not their type. The type comes from another input of the op, from the kernel's name, or from the run if
it uses only one type. If the type stays unknown, the op has no cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from math import prod
from typing import Any

from usp_prof.analyses.formulas.cost import Cost, Family, Formula, Shapes
from usp_prof.model.hardware import element_bytes

# Grouped by the number of tensors that are read; any further tensors among the inputs are outputs (out=).
_UNARY = """
neg abs exp log sqrt rsqrt reciprocal sigmoid tanh relu gelu silu clamp clamp_min clamp_max sin cos pow _to_copy clone
native_dropout cumsum tril triu roll flip bitwise_not sign round floor
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_BINARY = """
add sub mul div maximum minimum bitwise_and bitwise_or masked_fill threshold_backward gelu_backward silu_backward
sigmoid_backward tanh_backward native_dropout_backward logaddexp bitwise_xor remainder
""".split()  # noqa: SIM905 - as above
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not")
_TERNARY = ("where", "addcmul", "addcdiv", "lerp")
_IN_PLACE = """
add_ sub_ mul_ div_ exp_ log_ neg_ sqrt_ sigmoid_ relu_ silu_ clamp_ clamp_min_ masked_fill_ addcmul_ addcdiv_ lerp_
""".split()  # noqa: SIM905 - as above
_WRITES_ONLY = ("fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_")
_NORMS = """
layer_norm rms_norm group_norm
native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_group_norm
native_group_norm_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward
miopen_batch_norm miopen_batch_norm_backward batch_norm_backward_reduce _softmax _log_softmax
_softmax_backward_data _log_softmax_backward_data
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
# Functions of Apex, Megatron-LM and Transformer Engine, under the names of their classes.
_FUSED_NORMS = """
FusedLayerNormAffineFunction FusedLayerNormFunction FusedRMSNormAffineFunction FusedRMSNormFunction
FastLayerNormFN FusedScaleMaskSoftmax ScaledMaskedSoftmax ScaledSoftmax GenericScaledMaskedSoftmax
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_REDUCTIONS = """
sum mean amax amin max min argmax any all norm linalg_vector_norm nll_loss_forward var var_mean topk
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_VIEWS = """
alias as_strided chunk detach detach_ diagonal expand expand_as flatten lift_fresh mT movedim narrow numpy_T permute
reshape reshape_as _reshape_alias select slice split split_with_sizes squeeze squeeze_ swapaxes t t_ transpose
transpose_ unbind unflatten unfold unsafe_split unsqueeze unsqueeze_ _unsafe_view view view_as view_as_complex
view_as_real
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_")
# They copy only through an op inside them; their own part moves nothing.
_COPY_INSIDE = ("contiguous", "result_type", "to", "type_as")


def tensors(shapes: Shapes) -> Iterator[tuple[list[int], int]]:
    """Yield dims and bytes of every tensor among the inputs, except tensors in lists, whose type is not recorded."""
    for dims, kind in zip(shapes.dims, shapes.types, strict=False):
        width = element_bytes(kind)
        if dims and width:
            yield dims, prod(dims) * width


def _of_all_tensors(shapes: Shapes) -> int:
    """Return the bytes of all tensors among the inputs."""
    return sum(size for _, size in tensors(shapes))


def _moves(moved: int, shapes: Shapes, typed_input: int = 0) -> Cost:
    """Return the cost of an op that only moves bytes, in the precision of input `typed_input`."""
    return Cost(Family.ELEMENTWISE, 0.0, float(moved), shapes.precision(typed_input))


def _elementwise(reads: int, *, flags: bool = False) -> Callable[[Shapes], Cost | None]:
    """Return the formula of an op that reads `reads` tensors and writes their common shape; `flags` are bytes."""

    def formula(shapes: Shapes) -> Cost | None:
        read = list(tensors(shapes))[:reads]
        if not read:
            return None
        width = 1 if flags else max(size // prod(dims) for dims, size in read if prod(dims))
        written = prod(_broadcast([dims for dims, _ in read])) * width
        moved = sum(size for _, size in read) + written
        return _moves(moved, shapes)

    return formula


def _selection(shapes: Shapes) -> Cost:
    """Return the cost of reading and writing the slices that an index selects."""
    source, dim = shapes.tensor(0), int(shapes.values[1])
    picked = prod(shapes.tensor(2)) * prod(source) // source[dim]
    return _moves(2 * picked * shapes.element(0) + shapes.size(2), shapes)


def _gather(shapes: Shapes) -> Cost:
    """Return the cost of reading and writing one element per index."""
    moved = 2 * prod(shapes.tensor(2)) * shapes.element(0) + shapes.size(2)
    return _moves(moved, shapes)


def _embedding(shapes: Shapes) -> Cost:
    """Return the cost of reading and writing one row per token."""
    moved = 2 * prod(shapes.tensor(1)) * shapes.tensor(0)[-1] * shapes.element(0) + shapes.size(1)
    return _moves(moved, shapes)


def _embedding_backward(shapes: Shapes) -> Cost:
    """Return the cost of reading each token's gradient and writing the gradient of the whole table."""
    gradient, rows = shapes.tensor(0), int(shapes.values[2])
    moved = shapes.size(0) + shapes.size(1) + rows * gradient[-1] * shapes.element(0)
    return _moves(moved, shapes)


def _scattered(shapes: Shapes) -> Cost:
    """Return the cost of adding a source (input 3) to indexed places (input 2): both are read, the places updated."""
    return _moves(3 * shapes.size(3) + shapes.size(2), shapes, typed_input=3)


def _put(shapes: Shapes) -> Cost:
    """Return the cost of reading the values and writing them to their places. The index is not recorded."""
    return _moves(2 * shapes.size(2), shapes, typed_input=2)


def _sorted(shapes: Shapes) -> Cost:
    """Return the cost of reading once, and writing the values and an 8-byte index for each."""
    moved = 2 * shapes.size(0) + 8 * prod(shapes.tensor(0))
    return _moves(moved, shapes)


def _in_place(shapes: Shapes) -> Cost:
    """Return the cost of reading every input and writing the first."""
    return _moves(_of_all_tensors(shapes) + shapes.size(0), shapes)


def _copy(shapes: Shapes) -> Cost:
    """Return the cost of writing the first input and reading the second."""
    return _moves(shapes.size(0) + shapes.size(1), shapes)


def _write(shapes: Shapes) -> Cost:
    return _moves(shapes.size(0), shapes)


def _reduction(shapes: Shapes) -> Cost:
    return Cost(Family.REDUCTION, 0.0, float(_of_all_tensors(shapes)), shapes.precision(0))


def _norm(shapes: Shapes) -> Cost:
    """Return the cost of reading every input and writing an output as large as the largest input."""
    sizes = [size for _, size in tensors(shapes)]
    return Cost(Family.NORM, 0.0, float(sum(sizes) + max(sizes)), shapes.precision(0))


def _causal_softmax(shapes: Shapes) -> Cost:
    """Return the cost of reading the causal half of a square and writing all of it."""
    return Cost(Family.NORM, 0.0, 1.5 * shapes.size(0), shapes.precision(0))


def fused(shapes: Shapes) -> Cost | None:
    """Return the cost of a generated kernel: every tensor argument is read or written once."""
    moved = float(_of_all_tensors(shapes))
    return Cost(Family.FUSED, 0.0, moved, None) if moved else None


def _broadcast(shapes: list[list[int]]) -> list[int]:
    """Return the dims that several dims broadcast to."""
    sizes: list[Any] = [max(column) for column in zip_longest(*(dims[::-1] for dims in shapes), fillvalue=1)]
    return sizes[::-1]


def nothing_moved(shapes: Shapes) -> Cost:
    """Return the cost of an op that computes and moves nothing."""
    del shapes
    return Cost(Family.NOTHING, 0.0, 0.0, None)


# Ops on lists of tensors.

LIST = "TensorList"
FOREACH = "aten::_foreach_"

_OPAQUE = re.compile(r"OpaqueType<(?P<bytes>\d+)")
_ELEMENT = re.compile(r"\b(?P<name>c10::BFloat16|c10::Half|__nv_bfloat16|__half|double|float)\b")
_SPELLED = {"__nv_bfloat16": "c10::BFloat16", "__half": "c10::Half"}
_BY_WIDTH = {1: "byte", 2: "c10::BFloat16", 4: "float", 8: "double"}
_KEEPS = ("_foreach_norm", "_foreach_max")
_OVERWRITES = ("_foreach_copy_", "_foreach_zero_")


def element_type(kernel: str) -> str:
    """Return the element type that a kernel's name contains, or an empty string."""
    opaque = _OPAQUE.search(kernel)
    if opaque is not None:
        return _BY_WIDTH.get(int(opaque["bytes"]), "")
    match = _ELEMENT.search(kernel)
    return _SPELLED.get(match["name"], match["name"]) if match is not None else ""


def foreach(name: str) -> Formula:
    """Return the formula of a foreach op: every list is read, and the first (or as many new tensors) is written."""
    plain = name.removeprefix("aten::")
    writes_first = not plain.startswith(_KEEPS)
    reads_first = not plain.startswith(_OVERWRITES)

    def formula(shapes: Shapes) -> Cost:
        sizes = [_count(dims) for dims in shapes.dims if _is_list(dims)]
        moved = sum(sizes[1:]) + sizes[0] * (writes_first + reads_first)
        return _moving(moved * _width(shapes))

    return formula


def _optimizer(written: tuple[int, ...]) -> Callable[[Shapes], Cost]:
    """Return the formula of a fused optimizer: it reads all lists and writes those at the indexes `written`."""
    lists = max(written) + 1

    def formula(shapes: Shapes) -> Cost:
        sizes = [_count(dims) for dims in shapes.dims[: max(lists, 2)]]
        if not sizes[0] or sizes[1] != sizes[0]:
            raise ValueError("parameters and gradients do not fit")
        return _moving((sum(sizes) + sum(sizes[place] for place in written)) * _width(shapes))

    return formula


def _concatenation(shapes: Shapes) -> Cost:
    """Return the cost of reading every tensor of the list and writing as many bytes."""
    return _moving(2 * _count(shapes.dims[0]) * _width(shapes))


def _chunk_cat(shapes: Shapes) -> Cost:
    """Return the cost of reading every tensor of the list and writing the result, which is padded if it is given."""
    written = prod(shapes.tensor(3)) if len(shapes.dims) > 3 and shapes.dims[3] else _count(shapes.dims[0])
    return _moving((_count(shapes.dims[0]) + written) * _width(shapes))


def _taken_apart(shapes: Shapes) -> Cost:
    """Return the cost of reading one tensor and writing it in pieces."""
    return _moving(2 * shapes.size(0))


def _count(dims: Any) -> int:  # noqa: ANN401 - dims as recorded
    """Return the number of elements in a list of tensors; a tensor without dims counts as one. 0 if not recorded."""
    return sum(prod(int(size) for size in tensor_dims) for tensor_dims in dims) if _is_list(dims) else 0


def _is_list(dims: Any) -> bool:  # noqa: ANN401 - dims as recorded
    return bool(dims) and isinstance(dims[0], list)


def _width(shapes: Shapes) -> int:
    """Return the bytes per element of the lists; raise ValueError if the type is unknown."""
    typed = [element_bytes(kind) for kind, dims in zip(shapes.types, shapes.dims, strict=False)
             if dims and not _is_list(dims)]  # fmt: skip
    width = next((width_of_type for width_of_type in typed if width_of_type), 0) or element_bytes(shapes.lists)
    if not width:
        raise ValueError("the list's type is not known")
    return width


def _moving(moved: int) -> Cost:
    return Cost(Family.ELEMENTWISE, 0.0, float(moved), None)


FORMULAS: dict[str, Formula] = {
    **{f"aten::{name}": nothing_moved for name in (*_VIEWS, *_ALLOCATIONS, *_COPY_INSIDE)},
    **{f"aten::{name}": _elementwise(1) for name in _UNARY},
    **{f"aten::{name}": _elementwise(2) for name in _BINARY},
    **{f"aten::{name}": _elementwise(2, flags=True) for name in _COMPARING},
    **{f"aten::{name}": _elementwise(3) for name in _TERNARY},
    **{f"aten::{name}": _in_place for name in _IN_PLACE},
    "aten::index_select": _selection,
    "aten::gather": _gather,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::scatter_add_": _scattered,
    "aten::index_add_": _scattered,
    "aten::_index_put_impl_": _put,
    "aten::index_put_": _put,
    "aten::sort": _sorted,
    **{f"aten::{name}": _write for name in _WRITES_ONLY},
    **{f"aten::{name}": _norm for name in _NORMS},
    **dict.fromkeys(_FUSED_NORMS, _norm),
    "ScaledUpperTriangMaskedSoftmax": _causal_softmax,
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    "aten::copy_": _copy,
    "aten::cat": _concatenation,
    "aten::stack": _concatenation,
    "aten::_chunk_cat": _chunk_cat,
    "fsdp::chunk_cat": _chunk_cat,
    "fsdp::all_gather_copy_in": _concatenation,
    "aten::split_with_sizes_copy": _taken_apart,
    "fsdp::split_with_sizes_copy": _taken_apart,
    # Indexes of the lists that are written: parameters and states, not gradients.
    **dict.fromkeys(("aten::_fused_adamw_", "aten::_fused_adam_"), _optimizer((0, 2, 3, 4))),
    "aten::_fused_sgd_": _optimizer((0, 2)),
    "aten::_fused_adagrad_": _optimizer((0, 2)),
}
