"""Which ranks are worth a look first? Those that cost the others time, then those whose compute is unusual."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.report.document import Document

NOTABLE = 0.02
"""A rank whose compute is within 2 % of the median, and which costs nobody 2 % of a step, is like the others."""


def by_rank(document: Document, metric: str) -> dict[int, float]:
    """Give a metric's values by rank alone."""
    return {
        int(value.dims["rank"]): float(value.value)
        for value in document.values
        if value.metric.id == metric and set(value.dims) == {"rank"}
    }


def strangeness(document: Document) -> dict[int, float]:
    """Give for each rank what it costs, or how far its compute is from the median, as a share of the step."""
    compute, cost = by_rank(document, "compute_time"), by_rank(document, "straggler_cost")
    steps = by_rank(document, "step_time")
    usual = median(compute.values()) if compute else 0.0
    step = median(steps.values()) if steps else usual
    if step <= 0:
        return {}
    ranks = compute.keys() | cost.keys()
    return {rank: max(cost.get(rank, 0.0), abs(compute.get(rank, usual) - usual)) / step for rank in sorted(ranks)}


def first(document: Document, ranks: Iterable[int]) -> tuple[int, ...]:
    """Put outliers first, the strangest on top, and the others after them in order."""
    strange = strangeness(document)
    return tuple(
        sorted(ranks, key=lambda rank: (-strange.get(rank, 0.0) if strange.get(rank, 0.0) > NOTABLE else 0.0, rank))
    )


def found(document: Document) -> tuple[int, ...]:
    """Name the ranks that are not like the others, strangest first."""
    strange = strangeness(document)
    return tuple(sorted((r for r, much in strange.items() if much > NOTABLE), key=lambda r: (-strange[r], r)))
