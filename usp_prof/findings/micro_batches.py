"""Lengths of micro-batches: whether forward and backward take longer together, as longer sequences make them.

The time of each pass is divided by the mean of its rank, stage and step. Longer sequences lengthen both passes of a
micro-batch; noise lengthens one of them. In a step of three micro-batches:

    forward    0.8  1.0  1.2
    backward   0.8  1.0  1.2     correlation 1: the sequences differ in length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.findings.work_shares import BEST_SHARE
from usp_prof.model.edit import Edit
from usp_prof.model.topology import DATA_AXES, Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import BACKWARD, FORWARD, work_of
from usp_prof.tables.table_set import TableSet, memoized

VARIES = 0.05
"""Lengths are equal if the standard deviation of passes, relative to their mean, is below this."""
TOGETHER = 0.9
"""Correlation of forward and backward from which sequence lengths explain both."""
FEWEST = 8
"""Minimum number of micro-batches for a correlation."""
BY_CHANCE = 2.0
"""Standard errors by which a rank's mean micro-batch may exceed its peers' by chance."""
AXES = (Axis.PP, *DATA_AXES)
"""Axes whose ranks wait for the longest micro-batch, in order of preference."""


def waiting_axis(graph: Graph) -> Axis | None:
    """Return the axis whose ranks wait for the longest micro-batch: stages of a pipeline, else replicas."""
    return next((axis for axis in AXES if graph.on_axis(str(axis)).any()), None)


def evened(graph: Graph) -> Edit:
    """Share the work of each step evenly among replicas, or among the micro-batches of a pipeline."""
    axis = waiting_axis(graph) or Axis.DP
    return Edit("even_work", str(axis), () if axis is Axis.PP else (("per", "step"),))


@dataclass(frozen=True, slots=True)
class Passes:
    """Micro-batches of the steps and stages that have several, one entry each."""

    rank: Ints
    forward: Floats
    """Time of its forward over the mean of its rank, stage and step."""
    backward: Floats
    """The same for its backward."""
    duration: Ints
    """Forward and backward, in ns."""
    node: Ints
    """Its first node."""

    @property
    def together(self) -> float:
        """The correlation of forward and backward; 0 if they hardly vary."""
        if not len(self.rank) or min(self.forward.std(), self.backward.std()) < VARIES:
            return 0.0
        return float(np.corrcoef(self.forward, self.backward)[0, 1])

    def of_ranks(self, ranks: Sequence[int]) -> Passes:
        """Return the micro-batches of some ranks."""
        own = np.isin(self.rank, ranks)
        return Passes(self.rank[own], self.forward[own], self.backward[own], self.duration[own], self.node[own])


@memoized("micro-batch passes")
def passes_of(tables: TableSet) -> Passes:
    """Measure forward and backward of each micro-batch."""
    graph = graph_of(tables)
    work, nodes = work_of(tables), graph.nodes
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0))
    rows = rows[(work.phase[rows] == FORWARD) | (work.phase[rows] == BACKWARD)]
    has_actions = bool((work.micro_batch[rows] >= 0).any())
    if has_actions:
        rows = rows[work.micro_batch[rows] >= 0]
    if not len(rows):
        nothing = np.zeros(0, np.int64)
        return Passes(nothing, nothing.astype(float), nothing.astype(float), nothing, nothing)
    micro_batch = work.micro_batch[rows] if has_actions else _pass_number(graph, work.phase, rows)
    home = (nodes.rank[rows], work.stage[rows], nodes.step[rows])
    # Each node's micro-batch: micro-batches are numbered over all homes. From here on one entry each.
    pass_of_node = group_codes(*home, micro_batch)
    first_node = first_rows(pass_of_node)
    is_forward = work.phase[rows] == FORWARD
    forward = np.bincount(pass_of_node, np.where(is_forward, nodes.duration[rows], 0))
    backward = np.bincount(pass_of_node, np.where(is_forward, 0, nodes.duration[rows]))
    home_of_pass = group_codes(*(column[first_node] for column in home))
    forward_mean, backward_mean = (_mean_at_home(home_of_pass, times) for times in (forward, backward))
    # Compare only passes of micro-batches with both passes, and with others in the same rank, stage and step.
    good = (np.bincount(home_of_pass)[home_of_pass] > 1) & (forward_mean > 0) & (backward_mean > 0)
    return Passes(
        rank=nodes.rank[rows[first_node]][good],
        forward=forward[good] / forward_mean[good],
        backward=backward[good] / backward_mean[good],
        duration=(forward + backward).astype(np.int64)[good],
        node=rows[first_node][good],
    )


def _mean_at_home(home: Ints, times: Ints | Floats) -> Floats:
    """Return for each micro-batch the mean time of those of its rank, stage and step."""
    return np.asarray((np.bincount(home, times) / np.bincount(home))[home])


def _pass_number(graph: Graph, phase: Ints, rows: Ints) -> Ints:
    """Return pass numbers for runs without pipeline marks: a pass begins where forward follows backward.

    F F B B F B returns 0 0 0 0 1 1.
    """
    nodes = graph.nodes
    order = np.lexsort((nodes.start[rows], nodes.step[rows], nodes.rank[rows]))
    is_forward = phase[rows[order]] == FORWARD
    begins = np.append(False, is_forward[1:] & ~is_forward[:-1])
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(begins)  # numbers continue over ranks and steps, which are compared separately
    return number


def has_longer_sequences(tables: TableSet, rank: int, peers: Sequence[int], ratio: float) -> bool:
    """Return whether longer sequences in some micro-batches explain why a rank is slower than its peers.

    Forward and backward must vary together over all ranks. In addition, the rank's mean micro-batch exceeds its peers'
    by no more than chance allows, or its own passes vary together and its shortest micro-batches exceed its peers'
    shortest by less than half of `ratio`, its slowness over all micro-batches.
    """
    passes = passes_of(tables)
    own_passes, peer_passes = passes.of_ranks([rank]), passes.of_ranks(peers)
    if len(passes.rank) < FEWEST or passes.together < TOGETHER or not len(own_passes.rank) or not len(peer_passes.rank):
        return False
    error = sum(float(side.duration.var()) / len(side.rank) for side in (own_passes, peer_passes)) ** 0.5
    if float(own_passes.duration.mean() - peer_passes.duration.mean()) <= BY_CHANCE * error:
        return True
    own_shortest, peer_shortest = (float(np.quantile(side.duration, BEST_SHARE)) for side in (own_passes, peer_passes))
    return own_passes.together >= TOGETHER and own_shortest < (1 + (ratio - 1) / 2) * peer_shortest
