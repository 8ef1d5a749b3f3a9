"""Rule on sequences of unequal lengths: micro-batches whose forward and backward take longer together.

The time of each pass is divided by the mean of its rank, stage and step. Data makes both passes of a micro-batch
longer; noise affects either. In a step of three micro-batches

    forward    0.8  1.0  1.2
    backward   0.8  1.0  1.2     correlation 1: the sequences differ

`has_longer_sequences` asks the same of one rank, for rules that would call it slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import spot
from usp_prof.findings.rules.uneven_work import BEST
from usp_prof.model.edit import Edit
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.topology import DATA_AXES, Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import BACKWARD, FORWARD, work_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from usp_prof.columns.arrays import Floats, Ints
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet


VARIES = 0.05
"""Standard deviation of passes beside their mean, below which lengths are even."""
TOGETHER = 0.9
"""Correlation of forward and backward from which data is behind it."""
FEWEST = 8
"""Micro-batches that make a correlation."""
BY_CHANCE = 2.0
"""Standard errors by which the mean of a rank's micro-batches may lie above that of its peers' by chance."""
AXES = (Axis.PP, *DATA_AXES)
"""Where somebody waits for the longest micro-batch, in the order of preference."""


class UnequalLengths:
    """Sequences of different lengths make micro-batches unequal.

    What it finds
        Runs in which forward and backward times of micro-batches, within one rank and step, vary by at least 5% and
        together (correlation of at least 0.9 over at least eight micro-batches), if equal work would shorten the step
        by at least 3%. Data lengthens both passes of a micro-batch, while noise of the machine affects only one.

    Why it costs time
        Attention grows with the square of the sequence length. In each step, replicas wait for the one with the longest
        batch. In a pipeline, all stages wait for the longest micro-batch.

    What to do
        Give each replica the same sum of squared lengths: sort or pack by length.
        - torchtitan: its text loader packs to a fixed length; check your own.
        - Megatron-LM: packed sequences; with `--reset-attention-mask`, balance documents in preprocessing.
        - nanotron: packs in its collator.
        - DeepSpeed: `data_efficiency` with `dynamic_batching: {enabled: true, lr_scaling_method: ...}`.
        - our trainer: `--fault unequal-lengths` reproduces it.

    How the gain is predicted
        The run is replayed with each replica doing the mean work of its peers between its synchronizations, step by
        step (`even_work=dp,per=step`). In a pipeline, each micro-batch has the mean work of its stage and step over all
        replicas (`even_work=pp`).

    When it is wrong
        If micro-batches differ for another reason that affects both passes, such as selected experts or a throttling
        device.
    """

    CODE = RuleCode.UNEQUAL_LENGTHS
    TITLE = "Sequences of different lengths make micro-batches unequal"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Correlate forward and backward of micro-batches."""
        graph = graph_of(tables)
        axis = _unequal_over(graph)
        passes = passes_of(tables)
        if axis is not None and len(passes.rank) >= FEWEST and passes.together >= TOGETHER:
            longest = int(passes.node[np.argmax(passes.forward)])
            begin, end = int(graph.nodes.start[longest]), int(graph.nodes.end[longest])
            variation = float(passes.forward.std())
            yield Draft(
                "Micro-batches differ in length: forward and backward times vary together",
                {"axis": str(axis)},
                {"correlation": passes.together, "variation": variation, "micro_batches": len(passes.rank)}
                | dict(spot(graph, longest, begin, end)),
                evened(graph),
                "Give each replica and micro-batch the same sum of squared lengths",
                least_gain=0.03,
                rows=proof.largest(
                    "actions", "kind IN ('F', 'B') AND micro_batch >= 0", "device_end_ns - device_start_ns"
                ),
                settings={"DeepSpeed": "data_efficiency.dynamic_batching"},
            )


def _unequal_over(graph: Graph) -> Axis | None:
    """Return the axis that waits for the longest micro-batch: the stages of a pipeline, else replicas."""
    return next((axis for axis in AXES if graph.on_axis(str(axis)).any()), None)


def evened(graph: Graph) -> Edit:
    """Share the work of each step evenly among replicas, or among the micro-batches of a pipeline."""
    axis = _unequal_over(graph) or Axis.DP
    return Edit("even_work", str(axis), () if axis is Axis.PP else (("per", "step"),))


@dataclass(frozen=True, slots=True)
class Passes:
    """Micro-batches in the steps and stages that have several: one entry each."""

    rank: Ints
    forward: Floats
    """Time of its forward over the mean of its rank, stage and step."""
    backward: Floats
    """The same of its backward."""
    duration: Ints
    """Forward and backward, in ns."""
    node: Ints
    """The first node of it."""

    @property
    def together(self) -> float:
        """The correlation of forward and backward; 0 where they hardly vary."""
        if not len(self.rank) or min(self.forward.std(), self.backward.std()) < VARIES:
            return 0.0
        return float(np.corrcoef(self.forward, self.backward)[0, 1])

    def of(self, ranks: Sequence[int]) -> Passes:
        """Return those of some ranks."""
        own = np.isin(self.rank, ranks)
        return Passes(self.rank[own], self.forward[own], self.backward[own], self.duration[own], self.node[own])


def passes_of(tables: TableSet) -> Passes:
    """Measure forward and backward of each micro-batch."""
    return tables.memo("micro-batch passes", lambda: _measure_passes(graph_of(tables), tables))


def _measure_passes(graph: Graph, tables: TableSet) -> Passes:
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
    """Return passes numbers where no pipeline marks them: the next begins where forward follows backward.

    F F B B F B  gives  0 0 0 0 1 1.
    """
    nodes = graph.nodes
    order = np.lexsort((nodes.start[rows], nodes.step[rows], nodes.rank[rows]))
    is_forward = phase[rows[order]] == FORWARD
    begins = np.append(False, is_forward[1:] & ~is_forward[:-1])
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(begins)  # numbers continue over ranks and steps, which are compared separately
    return number


def has_longer_sequences(tables: TableSet, rank: int, peers: Sequence[int], ratio: float) -> bool:
    """Return whether a rank that is slower than its peers only has longer sequences in some micro-batches.

    Forward and backward vary together over all ranks, and either the rank is over its peers by no more than chance
    makes of so many micro-batches; or its own vary so too, and its shortest are not half as much over its peers'
    shortest as it is over them in all.
    """
    passes = passes_of(tables)
    own, others = passes.of([rank]), passes.of(peers)
    if len(passes.rank) < FEWEST or passes.together < TOGETHER or not len(own.rank) or not len(others.rank):
        return False
    error = sum(float(side.duration.var()) / len(side.rank) for side in (own, others)) ** 0.5
    if float(own.duration.mean() - others.duration.mean()) <= BY_CHANCE * error:
        return True
    shortest, usual = (float(np.quantile(side.duration, BEST)) for side in (own, others))
    return own.together >= TOGETHER and shortest < (1 + (ratio - 1) / 2) * usual
