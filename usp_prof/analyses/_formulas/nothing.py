"""Which ops compute and move nothing? Views, and the taking of memory: all of their time is the host's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.analyses._formulas.cost import Cost, Family, Shapes

if TYPE_CHECKING:
    from usp_prof.analyses._formulas.cost import Formula

_VIEWS = """
alias as_strided chunk detach detach_ diagonal expand expand_as flatten lift_fresh mT movedim narrow numpy_T permute
reshape reshape_as _reshape_alias select slice split split_with_sizes squeeze squeeze_ swapaxes t t_ transpose
transpose_ unbind unflatten unfold unsafe_split unsqueeze unsqueeze_ _unsafe_view view view_as view_as_complex
view_as_real
""".split()  # noqa: SIM905 - words read better than a hundred quoted lines
_MEMORY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_")
_UNCHANGED = ("contiguous", "result_type", "to", "type_as")
"""Ops that copy only by an op inside them: what is left of them moved nothing."""


def cost(shapes: Shapes) -> Cost:
    """Say that nothing is computed or moved."""
    del shapes
    return Cost(Family.NOTHING, 0.0, 0.0, None)


FORMULAS: dict[str, Formula] = {f"aten::{name}": cost for name in (*_VIEWS, *_MEMORY, *_UNCHANGED)}
