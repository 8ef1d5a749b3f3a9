"""Formulas by op name: the FLOP and the bytes of an op, from its recorded shapes alone."""

from __future__ import annotations

from usp_prof.analyses.formulas import bandwidth, products
from usp_prof.analyses.formulas.cost import Cost, Family, Formula, Shapes, parse

__all__ = ["FORMULAS", "Cost", "Family", "Shapes", "cost", "parse"]

FORMULAS: dict[str, Formula] = {
    **bandwidth.FORMULAS,
    **products.FORMULAS,
}
"""The formula of each op that has one; fused Triton kernels and foreach ops are recognised by their prefix."""


def cost(name: str, shapes: Shapes) -> Cost | None:
    """Give an op's cost; `None` without a formula, and where shapes were not recorded or do not fit it."""
    formula = _formula(name)
    if formula is bandwidth.nothing_moved:
        return formula(shapes)
    if formula is None or not any(shapes.dims):
        return None
    try:
        estimate = formula(shapes)
    except (IndexError, ValueError, TypeError):  # shapes that the formula does not know: another version of the op
        return None
    return estimate if estimate is not None and (estimate.flop > 0 or estimate.bytes > 0) else None


def _formula(name: str) -> Formula | None:
    if name.startswith("triton_"):
        return bandwidth.fused
    return bandwidth.foreach(name) if name.startswith(bandwidth.FOREACH) else FORMULAS.get(name)
