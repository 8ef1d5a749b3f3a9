"""Formulas by op name: an op's FLOP and bytes from its recorded shapes alone."""

from __future__ import annotations

from usp_prof.analyses.formulas import bandwidth, products
from usp_prof.analyses.formulas.cost import Cost, Family, Formula, Shapes, parse

__all__ = ["FORMULAS", "Cost", "Family", "Shapes", "cost", "parse"]

FORMULAS: dict[str, Formula] = {
    **bandwidth.FORMULAS,
    **products.FORMULAS,
}
"""Formula per op name. Fused Triton kernels and foreach ops are recognized by their prefix instead."""


def cost(name: str, shapes: Shapes) -> Cost | None:
    """Return an op's cost, or `None` if it has no formula or its shapes are missing or do not match the formula."""
    formula = _formula(name)
    if formula is bandwidth.nothing_moved:
        return formula(shapes)
    if formula is None or not any(shapes.dims):
        return None
    try:
        estimate = formula(shapes)
    except (IndexError, ValueError, TypeError):  # shapes of another version of the op
        return None
    return estimate if estimate is not None and (estimate.flop > 0 or estimate.bytes > 0) else None


def _formula(name: str) -> Formula | None:
    if name.startswith("triton_"):
        return bandwidth.fused
    return bandwidth.foreach(name) if name.startswith(bandwidth.FOREACH) else FORMULAS.get(name)
