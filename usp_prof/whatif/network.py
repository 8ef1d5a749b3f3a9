"""Times of communication under other conditions: latency and bandwidth fitted to the run's own calls.

A call of an axis and an operation takes a latency and its bytes at a bandwidth: t = a + bytes / b, a line through the
calls of that kind whose messages have at least two sizes. Where all are alike, nothing tells the two apart: then the
latency is that of the run's small messages on any axis, or a usual one, and the bandwidth has the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.model.errors import UsageError
from usp_prof.replay.peers import calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.replay.graph import Flags, Graph, Ints
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.edits.kind import Request

    Floats = NDArray[np.float64]


class Algorithm(StrEnum):
    """How the members of a collective pass data on."""

    RING = "ring"
    TREE = "tree"
    DIRECT = "direct"


SMALL_BYTES = 65_536
"""Smaller messages take their latency and little else."""
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

    def latency(self, graph: Graph) -> Floats:
        """Give each node's latency: of its call, and no more than it takes; 0 for what is no call of the run."""
        return np.asarray(np.minimum(self.spread(graph, self.latency_ns, 0.0), np.maximum(graph.transfer, 0)))

    def spread(self, graph: Graph, values: Sequence[float] | Floats | Flags, other: float) -> Floats:
        """Give each node the figure of its call; `other` to what is no call of the run."""
        return lookup(
            np.asarray(values, np.float64),
            np.where(graph.nodes.call < len(self.size), graph.nodes.call, -1),
            missing=other,
        )


def network_of(tables: TableSet) -> Network:
    """Fit the run's network, once."""
    return tables.memo("whatif network", lambda: _fit(tables))


def _fit(tables: TableSet) -> Network:
    rows = calls_of(tables)
    op, ops = rows.codes("op")
    axis = rows.codes("axis")[0]
    size, transfer = rows["bytes"], rows["transfer_ns"].astype(np.float64)
    timed = (rows["transfer_ns"] > 0) & (size >= 0)
    small = timed & (size <= SMALL_BYTES)
    usual = float(np.median(transfer[small])) if small.any() else float(USUAL_LATENCY_NS)
    latency = np.minimum(np.full(len(rows), usual), np.maximum(transfer, 0.0))
    guessed = np.full(len(rows), not small.any())
    for code in {(int(a), int(o)) for a, o in zip(axis.tolist(), op.tolist(), strict=True)}:
        kind = (axis == code[0]) & (op == code[1])
        found = _intercept(size[kind & timed], transfer[kind & timed])
        if found is not None:
            latency[kind], guessed[kind] = found, False
    return Network(tuple(ops), op, rows["group_size"], size, latency, rows["inter_node"], guessed)


def _intercept(size: Ints, time: Floats) -> float | None:
    """Give where the line through the medians of each size meets no bytes; `None` where one size is all there is."""
    sizes = np.unique(size)
    if len(sizes) < 2:
        return None
    median = np.array([np.median(time[size == each]) for each in sizes.tolist()])
    slope = (median[-1] - median[0]) / (sizes[-1] - sizes[0])
    if slope <= 0:
        return float(median.min())
    return float(np.clip(median[0] - slope * sizes[0], 0.0, median.min()))


def talk(graph: Graph, request: Request) -> Flags:
    """Mark the communication that an edit's keys `axis` and `op` name; all of it without them."""
    axis, op = request.edit.place("axis"), request.edit.place("op")
    rows = on_axis(graph, request, axis)
    if not op:
        return rows
    found = network_of(request.tables)
    if op not in found.op:
        there = ", ".join(sorted(found.op)) or "none whose members are known"
        raise UsageError(f"edit {request.edit}: the run has no {op}", hint=f"it has: {there}")
    return np.asarray(rows & (found.spread(graph, found.op_code == found.op.index(op), 0.0) > 0))


def on_axis(graph: Graph, request: Request, axis: str) -> Flags:
    """Mark the communication of an axis; of its parts too (dp_shard is part of dp); of all axes for the empty word."""
    names = [each for each in graph.axes if each == axis or each.startswith(f"{axis}_")] if axis else [""]
    if not names:
        there = ", ".join(sorted(each for each in graph.axes if each)) or "none"
        raise UsageError(f"edit {request.edit}: the run has no communication of axis {axis}", hint=f"it has: {there}")
    return np.asarray(np.any([graph.on_axis(name) for name in names], axis=0))
