"""Fitted times: linear models of kernels and communication, for predictions under other conditions.

A matrix product takes a constant plus its FLOP at the rate of large products: t = c + flop / rate, fitted over the
run's distinct shapes. Other kernels scale with their work, down to the run's shortest kernel.
A call takes a latency plus its bytes at a bandwidth: t = a + bytes / b, fitted per axis and operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log2

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import lookup, rows_by_code
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import Family, work_of
from usp_prof.replay.peers import calls_of
from usp_prof.tables.table_set import TableSet, memoized

FEWEST = 3
"""Minimum number of distinct product sizes to separate the constant from the rate."""
CAUTION = 0.1
"""Extra time of resized kernels in the cautious model, as a share of the fitted time."""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The fitted line of matrix products; `shortest_ns` is the duration of the run's shortest compute kernels."""

    constant_ns: float
    flop_per_ns: float
    shortest_ns: float

    def scaled(self, duration: Ints, flop: Floats, factor: Floats | float, *, cautious: bool = False) -> Ints:
        """Return kernel times with the work multiplied by `factor`; `flop` is 0 for kernels other than products."""
        change = np.broadcast_to(np.asarray(factor, np.float64), duration.shape)
        if self.flop_per_ns:
            line = self.constant_ns + flop / self.flop_per_ns
            ratio = np.where(
                flop > 0, (self.constant_ns + flop * change / self.flop_per_ns) / np.maximum(line, 1e-9), change
            )
        else:
            ratio = change
        if cautious:
            ratio = np.where(change != 1, ratio * (1 + CAUTION), ratio)
        least = np.where(change < 1, np.minimum(duration, self.shortest_ns), 0)
        return np.asarray(np.rint(np.maximum(duration * ratio, least)), np.int64)


@memoized("whatif kernel times")
def kernel_times(tables: TableSet) -> KernelTimes:
    """Return the fitted line."""
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
    median = np.array([float(np.median(np.concatenate(sizes[work_size]))) for work_size in flop.tolist()])
    # Theil-Sen estimator: the median of the slopes between all pairs of sizes.
    first, second = np.triu_indices(len(flop), k=1)
    slope = float(np.median((median[second] - median[first]) / (flop[second] - flop[first])))
    if slope <= 0:
        return KernelTimes(0.0, 0.0, shortest)
    constant = float(np.clip(np.median(median - slope * flop), 0.0, median.min()))
    return KernelTimes(constant, 1 / slope, shortest)


# Communication times: latency and bandwidth fitted to the run's own calls.
#
# For each axis and operation, t = a + bytes / b is fitted to calls whose message sizes differ enough. If all sizes are
# similar, latency and bandwidth cannot be separated. The latency is then that of the run's small messages on any axis,
# or a typical one, and the bandwidth accounts for the rest.


class Algorithm(StrEnum):
    """Algorithm of a collective."""

    RING = "ring"
    TREE = "tree"
    DIRECT = "direct"


SMALL_BYTES = 65_536
"""The time of smaller messages is mostly latency."""
ALIKE = 4
"""Small messages up to this multiple of the smallest size determine the latency."""
APART = 2
"""Minimum ratio of the largest to the smallest message size for fitting a latency."""
USUAL_LATENCY_NS = 20_000
"""Fallback if the run has no small messages: NCCL collectives within a node typically take 10 to 30 us."""

_TWICE = ("all_reduce",)
_SHARED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def hops(op: str, size: int, algorithm: Algorithm) -> float:
    """Return the number of latencies in a collective of `size` members."""
    if size < 2:
        return 0.0
    twice = 2.0 if op in _TWICE else 1.0
    if algorithm is Algorithm.RING:
        return twice * (size - 1)
    return twice * log2(size) if algorithm is Algorithm.TREE else twice


def volume(op: str, size: int, algorithm: Algorithm = Algorithm.RING) -> float:
    """Return how many times a collective's bytes cross each member's link."""
    if size < 2:
        return 0.0
    share = (size - 1) / size if op in _SHARED else 1.0
    twice = 2.0 if op in _TWICE else 1.0
    if algorithm is Algorithm.TREE:
        return twice if op in _TWICE else share  # all bytes go up and down; for gathers, a tree saves no bytes
    if algorithm is Algorithm.DIRECT and op in _TWICE:
        return float(size - 1)  # each member sends all bytes to each other member
    return twice * share


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Operation, latency and message size of each call of the run, indexed by call number of the graph."""

    op: tuple[str, ...]
    op_code: Ints
    size: Ints
    bytes: Ints
    latency_ns: Floats
    inter_node: Flags
    guessed: Flags
    """Marks of calls whose latency and bandwidth the run cannot separate."""

    def runs(self, graph: Graph, *ops: str) -> Flags:
        """Mark the nodes whose call has one of these operations."""
        is_op = [op in ops for op in self.op]
        return np.asarray(self.spread(graph, np.array(is_op, bool)[self.op_code], 0.0) > 0)

    def latency(self, graph: Graph) -> Floats:
        """Return the latency of each node's call, at most its transfer time; 0 for nodes without a call of the run."""
        return np.asarray(np.minimum(self.spread(graph, self.latency_ns, 0.0), np.maximum(graph.transfer, 0)))

    def spread(self, graph: Graph, values: Sequence[float] | Floats | Flags, other: float) -> Floats:
        """Return the value of each node's call; `other` for nodes without a call of the run."""
        call = np.where(
            graph.nodes.call < len(self.size), graph.nodes.call, -1
        )  # calls inserted by edits have higher numbers
        return lookup(np.asarray(values, np.float64), call, missing=other)


def resized(graph: Graph, latency: Floats, *, hops: Floats | float = 1.0, volume: Floats | float = 1.0) -> Floats:
    """Return transfer times with hops and bytes multiplied by the given factors.

    A transfer of 30 us, including 10 us of latency, takes 10 + 2 x 20 = 50 us with twice the bytes.
    """
    return np.asarray(latency * hops + (graph.transfer - latency) * volume)


def over_gloo(tables: TableSet) -> bool:
    """Return whether the run communicates over gloo."""
    return any(tables.columns("collectives", rank).matches("library", "gloo").any() for rank in tables.ranks)


@memoized("whatif network")
def network_of(tables: TableSet) -> Network:
    """Return the fitted network of the run."""
    rows = calls_of(tables)
    op, ops = rows.codes("op")
    axis = rows.codes("axis")[0]
    size, transfer = rows["bytes"], rows["transfer_ns"].astype(np.float64)
    # Messages that share a link wait for each other, so a small one may take as long as a large one.
    timed = (rows["transfer_ns"] > 0) & (size >= 0) & _alone(rows.codes("group")[0], rows["last_ns"], rows["end_ns"])
    small = timed & (size <= SMALL_BYTES)
    if small.any():  # over a slow link, bytes matter even for larger small messages
        small &= size <= ALIKE * max(1, int(size[small].min()))
    usual = float(np.median(transfer[small])) if small.any() else float(USUAL_LATENCY_NS)
    latency = np.minimum(np.full(len(rows), usual), np.maximum(transfer, 0.0))
    guessed = np.full(len(rows), not small.any())
    for code in {(int(a), int(o)) for a, o in zip(axis.tolist(), op.tolist(), strict=True)}:
        kind = (axis == code[0]) & (op == code[1])
        fitted = _intercept(size[kind & timed], transfer[kind & timed])
        if fitted is not None:
            latency[kind], guessed[kind] = fitted, False
    return Network(tuple(ops), op, rows["group_size"], size, latency, rows["inter_node"], guessed)


def _alone(group: Ints, begin: Ints, end: Ints) -> Flags:
    """Mark the calls that do not overlap with another transfer of their group."""
    alone = np.ones(len(group), dtype=bool)
    for rows in rows_by_code(group).values():
        by_begin = rows[np.argsort(begin[rows], kind="stable")]
        # Sorted by start: a call is alone if all earlier calls have ended and the next one starts after its end.
        all_over = np.maximum.accumulate(end[by_begin])
        alone[by_begin[1:]] &= all_over[:-1] <= begin[by_begin[1:]]
        alone[by_begin[:-1]] &= begin[by_begin[1:]] >= end[by_begin[:-1]]
    return alone


def _intercept(size: Ints, time: Floats) -> float | None:
    """Return the fitted time at zero bytes, from the median time per size; `None` if sizes are too similar."""
    sizes = np.unique(size)
    if len(sizes) < 2 or sizes[-1] < APART * sizes[0]:
        return None
    median = np.array([np.median(time[size == one_size]) for one_size in sizes.tolist()])
    slope = (median[-1] - median[0]) / (sizes[-1] - sizes[0])
    if slope <= 0:
        return float(median.min())
    return float(np.clip(median[0] - slope * sizes[0], 0.0, median.min()))
