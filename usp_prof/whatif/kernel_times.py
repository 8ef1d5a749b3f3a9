"""Times of kernels with more or less to do: a line through the run's own matrix products.

A product takes a constant and its FLOP at the rate that large ones reach: t = c + flop / rate, fitted over the run's
distinct shapes. Other kernels scale with their work, down to the shortest that the run has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import Family, work_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.replay.graph import Ints
    from usp_prof.tables.table_set import TableSet

    Floats = NDArray[np.float64]

FEWEST = 3
"""So many distinct sizes of products are needed to tell the constant from the rate."""
CAUTION = 0.1
"""Cautiously, smaller kernels run at so much less of the rate than the line says."""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The line; `shortest_ns` is the time of the run's shortest computing kernels."""

    constant_ns: float
    flop_per_ns: float
    shortest_ns: float

    def scaled(self, duration: Ints, flop: Floats, factor: Floats | float, *, cautious: bool = False) -> Ints:
        """Give kernels' times when their work is multiplied by a factor; `flop` is 0 for what is no product."""
        change = np.broadcast_to(np.asarray(factor, np.float64), duration.shape)
        if self.flop_per_ns:
            line = self.constant_ns + flop / self.flop_per_ns
            ratio = np.where(
                flop > 0, (self.constant_ns + flop * change / self.flop_per_ns) / np.maximum(line, 1e-9), change
            )
        else:
            ratio = change
        if cautious:
            ratio = np.where(change < 1, ratio * (1 + CAUTION), np.where(change > 1, ratio * (1 + CAUTION), ratio))
        least = np.where(change < 1, np.minimum(duration, self.shortest_ns), 0)
        return np.asarray(np.rint(np.maximum(duration * ratio, least)), np.int64)


def kernel_times(tables: TableSet) -> KernelTimes:
    """Fit the line, once."""
    return tables.memo("whatif kernel times", lambda: _fit(tables))


def _fit(tables: TableSet) -> KernelTimes:
    graph, work = graph_of(tables), work_of(tables)
    compute = (graph.nodes.kind == NodeKind.COMPUTE) & (graph.duration > 0)
    shortest = float(np.quantile(graph.duration[compute], 0.01)) if compute.any() else 0.0
    sizes: dict[float, list[Ints]] = {}
    for number, shape in enumerate(work.shapes):
        if shape.family is Family.PRODUCT and shape.flop > 0:
            times = graph.duration[compute & (work.shape == number)]
            if len(times):
                sizes.setdefault(shape.flop, []).append(times)
    if len(sizes) < FEWEST:
        return KernelTimes(0.0, 0.0, shortest)
    flop = np.array(sorted(sizes))
    median = np.array([float(np.median(np.concatenate(sizes[each]))) for each in flop.tolist()])
    slopes = [(median[b] - median[a]) / (flop[b] - flop[a]) for a in range(len(flop)) for b in range(a + 1, len(flop))]
    slope = float(np.median(slopes))
    if slope <= 0:
        return KernelTimes(0.0, 0.0, shortest)
    constant = float(np.clip(np.median(median - slope * flop), 0.0, median.min()))
    return KernelTimes(constant, 1 / slope, shortest)
