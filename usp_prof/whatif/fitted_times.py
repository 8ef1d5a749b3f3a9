"""Fitted times of kernels and communication under other conditions, by lines through the run's own.

A matrix product takes a constant and its FLOP at the rate that large ones reach: t = c + flop / rate, fitted over the
run's distinct shapes. Other kernels scale with their work, down to the shortest that the run has.
A call takes a latency and its bytes at a bandwidth: t = a + bytes / b, fitted for each axis and operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, rows_by_code
from usp_prof.model.errors import UsageError
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import Family, work_of
from usp_prof.replay.peers import calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.edits.kind import Request


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
            ratio = np.where(change != 1, ratio * (1 + CAUTION), ratio)
        least = np.where(change < 1, np.minimum(duration, self.shortest_ns), 0)
        return np.asarray(np.rint(np.maximum(duration * ratio, least)), np.int64)


def kernel_times(tables: TableSet) -> KernelTimes:
    """Fit the line, once."""
    return tables.memo("whatif kernel times", lambda: _fit_products(tables))


def _fit_products(tables: TableSet) -> KernelTimes:
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
    # Theil and Sen: the median of the slopes between any two sizes.
    one, other = np.triu_indices(len(flop), k=1)
    slope = float(np.median((median[other] - median[one]) / (flop[other] - flop[one])))
    if slope <= 0:
        return KernelTimes(0.0, 0.0, shortest)
    constant = float(np.clip(np.median(median - slope * flop), 0.0, median.min()))
    return KernelTimes(constant, 1 / slope, shortest)


# Times of communication: latency and bandwidth fitted to the run's own calls.
#
# A call of an axis and an operation takes a latency and its bytes at a bandwidth: t = a + bytes / b, a line through
# the calls of that kind whose messages differ enough in size. Where all are alike, nothing tells the two apart: then
# the latency is that of the run's small messages on any axis, or a usual one, and the bandwidth has the rest.


class Algorithm(StrEnum):
    """How the members of a collective pass data on."""

    RING = "ring"
    TREE = "tree"
    DIRECT = "direct"


SMALL_BYTES = 65_536
"""Smaller messages take their latency and little else."""
ALIKE = 4
"""Of the small messages those tell the latency that are at most so many times the smallest."""
APART = 2
"""The largest message is so many times the smallest where a line through them tells the latency."""
USUAL_LATENCY_NS = 20_000
"""Of a collective inside a node over NCCL, 10 to 30 us are usual; taken where the run has no small messages."""

_TWICE = ("all_reduce",)
_SHARED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def hops(op: str, size: int, algorithm: Algorithm) -> float:
    """Give how many latencies a collective of so many members has."""
    if size < 2:
        return 0.0
    twice = 2.0 if op in _TWICE else 1.0
    if algorithm is Algorithm.RING:
        return twice * (size - 1)
    return twice * log2(size) if algorithm is Algorithm.TREE else twice


def volume(op: str, size: int, algorithm: Algorithm = Algorithm.RING) -> float:
    """Give how often a collective's bytes cross a member's link."""
    if size < 2:
        return 0.0
    share = (size - 1) / size if op in _SHARED else 1.0
    twice = 2.0 if op in _TWICE else 1.0
    if algorithm is Algorithm.TREE:
        return twice if op in _TWICE else share  # the whole goes up and down; gathers have no tree that saves bytes
    if algorithm is Algorithm.DIRECT and op in _TWICE:
        return float(size - 1)  # everyone sends everything to everyone
    return twice * share


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """For each call of the run, in the graph's numbers: its kind, its latency's share of the transfer, its size."""

    op: tuple[str, ...]
    op_code: Ints
    size: Ints
    bytes: Ints
    latency_ns: Floats
    inter_node: Flags
    guessed: Flags
    """Nothing in the run tells these calls' latency from their bandwidth."""

    def runs(self, graph: Graph, *ops: str) -> Flags:
        """Mark the nodes whose call is one of these operations."""
        is_op = [op in ops for op in self.op]
        return np.asarray(self.spread(graph, np.array(is_op, bool)[self.op_code], 0.0) > 0)

    def latency(self, graph: Graph) -> Floats:
        """Give each node's latency: of its call, and no more than it takes; 0 for what is no call of the run."""
        return np.asarray(np.minimum(self.spread(graph, self.latency_ns, 0.0), np.maximum(graph.transfer, 0)))

    def spread(self, graph: Graph, values: Sequence[float] | Floats | Flags, other: float) -> Floats:
        """Give each node the figure of its call; `other` to what is no call of the run."""
        call = np.where(graph.nodes.call < len(self.size), graph.nodes.call, -1)  # edits put in calls beyond the run's
        return lookup(np.asarray(values, np.float64), call, missing=other)


def resized(graph: Graph, latency: Floats, *, hops: Floats | float = 1.0, volume: Floats | float = 1.0) -> Floats:
    """Give transfers with so many times the hops and so many times the bytes.

    A transfer of 30 us of which 10 are latency takes 10 + 2 x 20 = 50 us with twice the bytes.
    """
    return np.asarray(latency * hops + (graph.transfer - latency) * volume)


def over_gloo(tables: TableSet) -> bool:
    """Say whether gloo carries the run's messages."""
    return any(tables.columns("collectives", rank).matches("library", "gloo").any() for rank in tables.ranks)


def network_of(tables: TableSet) -> Network:
    """Fit the run's network, once."""
    return tables.memo("whatif network", lambda: _fit_network(tables))


def _fit_network(tables: TableSet) -> Network:
    rows = calls_of(tables)
    op, ops = rows.codes("op")
    axis = rows.codes("axis")[0]
    size, transfer = rows["bytes"], rows["transfer_ns"].astype(np.float64)
    # What shares its link with another message waits for it: such a small one may take as long as a large one.
    timed = (rows["transfer_ns"] > 0) & (size >= 0) & _alone(rows.codes("group")[0], rows["last_ns"], rows["end_ns"])
    small = timed & (size <= SMALL_BYTES)
    if small.any():  # over a slow link the bytes of the larger of them count
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
    """Mark the calls during whose transfer no other call of their group moves data."""
    alone = np.ones(len(group), dtype=bool)
    for rows in rows_by_code(group).values():
        by_begin = rows[np.argsort(begin[rows], kind="stable")]
        # In the order of begins: a call is alone where all before it are over, and the next begins after its end.
        all_over = np.maximum.accumulate(end[by_begin])
        alone[by_begin[1:]] &= all_over[:-1] <= begin[by_begin[1:]]
        alone[by_begin[:-1]] &= begin[by_begin[1:]] >= end[by_begin[:-1]]
    return alone


def _intercept(size: Ints, time: Floats) -> float | None:
    """Give where the line through the medians of each size meets no bytes; `None` where sizes are (nearly) alike."""
    sizes = np.unique(size)
    if len(sizes) < 2 or sizes[-1] < APART * sizes[0]:
        return None
    median = np.array([np.median(time[size == one_size]) for one_size in sizes.tolist()])
    slope = (median[-1] - median[0]) / (sizes[-1] - sizes[0])
    if slope <= 0:
        return float(median.min())
    return float(np.clip(median[0] - slope * sizes[0], 0.0, median.min()))


def communication_of(graph: Graph, request: Request) -> Flags:
    """Mark the communication that an edit's keys `axis` and `op` name; all of it without them."""
    axis, op = request.edit.place("axis"), request.edit.place("op")
    rows = on_axis(graph, request, axis)
    if not op:
        return rows
    network = network_of(request.tables)
    if op not in network.op:
        ops = ", ".join(sorted(network.op)) or "none whose members are known"
        raise UsageError(f"edit {request.edit}: the run has no {op}", hint=f"it has: {ops}")
    return np.asarray(rows & network.runs(graph, op))


def on_axis(graph: Graph, request: Request, axis: str) -> Flags:
    """Mark the communication of an axis; of its parts too (dp_shard is part of dp); of all axes for the empty word."""
    names = (
        [axis_name for axis_name in graph.axes if axis_name == axis or axis_name.startswith(f"{axis}_")]
        if axis
        else [""]
    )
    if not names:
        axes = ", ".join(sorted(axis_name for axis_name in graph.axes if axis_name)) or "none"
        raise UsageError(f"edit {request.edit}: the run has no communication of axis {axis}", hint=f"it has: {axes}")
    return np.asarray(np.any([graph.on_axis(name) for name in names], axis=0))
