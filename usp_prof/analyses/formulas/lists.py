"""Ops on lists of tensors, and the bytes that they move: fused and foreach optimizers, concatenation, FSDP's copies.

Profilers record the dims of a list's tensors, not their type. It is taken from another input of the op that has one,
from the kernel's name, or from the run where all numbers are of one type; where nothing says it there is no cost.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

from usp_prof.analyses.formulas.cost import Cost, Family, Shapes
from usp_prof.model.hardware import element_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.analyses.formulas.cost import Formula

LIST = "TensorList"
FOREACH = "aten::_foreach_"

_OPAQUE = re.compile(r"OpaqueType<(?P<bytes>\d+)")
_ELEMENT = re.compile(r"\b(?P<name>c10::BFloat16|c10::Half|__nv_bfloat16|__half|double|float)\b")
_SPELLED = {"__nv_bfloat16": "c10::BFloat16", "__half": "c10::Half"}
_BY_WIDTH = {1: "byte", 2: "c10::BFloat16", 4: "float", 8: "double"}
_KEEPS = ("_foreach_norm", "_foreach_max")
_OVERWRITES = ("_foreach_copy_", "_foreach_zero_")


def element_type(kernel: str) -> str:
    """Give the type of the elements that a kernel's name tells; empty where it tells none."""
    opaque = _OPAQUE.search(kernel)
    if opaque is not None:
        return _BY_WIDTH.get(int(opaque["bytes"]), "")
    named = _ELEMENT.search(kernel)
    return _SPELLED.get(named["name"], named["name"]) if named is not None else ""


def foreach(name: str) -> Formula:
    """Make the formula of a foreach op: every list read, and the first written (or as many new tensors)."""
    plain = name.removeprefix("aten::")
    writes_first = not plain.startswith(_KEEPS)
    reads_first = not plain.startswith(_OVERWRITES)

    def formula(shapes: Shapes) -> Cost:
        sizes = [_count(dims) for dims in shapes.dims if _is_list(dims)]
        moved = sum(sizes[1:]) + sizes[0] * (writes_first + reads_first)
        return _moving(moved * _width(shapes))

    return formula


def _optimizer(written: tuple[int, ...]) -> Callable[[Shapes], Cost]:
    """Make the formula of a fused optimizer: parameters, gradients and states read; all but gradients written."""
    lists = max(written) + 1

    def formula(shapes: Shapes) -> Cost:
        sizes = [_count(dims) for dims in shapes.dims[: max(lists, 2)]]
        if not sizes[0] or sizes[1] != sizes[0]:
            raise ValueError("parameters and gradients do not fit")
        return _moving((sum(sizes) + sum(sizes[place] for place in written)) * _width(shapes))

    return formula


def _joined(shapes: Shapes) -> Cost:
    """Read every tensor of the list and write as much."""
    return _moving(2 * _count(shapes.dims[0]) * _width(shapes))


def _chunk_cat(shapes: Shapes) -> Cost:
    """Read every tensor of the list; what is written is padded, where the result is given."""
    written = prod(shapes.tensor(3)) if len(shapes.dims) > 3 and shapes.dims[3] else _count(shapes.dims[0])
    return _moving((_count(shapes.dims[0]) + written) * _width(shapes))


def _taken_apart(shapes: Shapes) -> Cost:
    """Read one tensor and write it in pieces."""
    return _moving(2 * shapes.size(0))


def _count(dims: Any) -> int:  # noqa: ANN401 - dims as recorded
    """Count the elements of a list of tensors, a tensor without dims as one; none where nothing was recorded."""
    return sum(prod(int(size) for size in one) for one in dims) if _is_list(dims) else 0


def _is_list(dims: Any) -> bool:  # noqa: ANN401 - dims as recorded
    return bool(dims) and isinstance(dims[0], list)


def _width(shapes: Shapes) -> int:
    """Give the bytes of one element of the lists; raise where nothing says it."""
    typed = [element_bytes(kind) for kind, dims in zip(shapes.types, shapes.dims, strict=False)
             if dims and not _is_list(dims)]  # fmt: skip
    width = next((one for one in typed if one), 0) or element_bytes(shapes.lists)
    if not width:
        raise ValueError("the list's type is not known")
    return width


def _moving(moved: int) -> Cost:
    return Cost(Family.ELEMENTWISE, 0.0, float(moved), None)


LIST_FORMULAS: dict[str, Formula] = {
    "aten::cat": _joined,
    "aten::stack": _joined,
    "aten::_chunk_cat": _chunk_cat,
    "fsdp::chunk_cat": _chunk_cat,
    "fsdp::all_gather_copy_in": _joined,
    "aten::split_with_sizes_copy": _taken_apart,
    "fsdp::split_with_sizes_copy": _taken_apart,
    # Places of the lists that are written: parameters and states, not gradients.
    **dict.fromkeys(("aten::_fused_adamw_", "aten::_fused_adam_"), _optimizer((0, 2, 3, 4))),
    "aten::_fused_sgd_": _optimizer((0, 2)),
    "aten::_fused_adagrad_": _optimizer((0, 2)),
}
