"""Sequences of unequal lengths make micro-batches unequal.

What it finds
    Data-parallel runs in which the times of a micro-batch's forward and backward, within one rank and step, vary by 5 %
    or more and together (correlation 0.9 or more over at least eight of them), where equal work on all replicas would
    shorten the step by 3 % or more. That the two go together is the mark of the data: noise of the machine strikes
    either.

Why it costs time
    Attention grows with the square of a sequence's length; replicas wait for the one whose batch took longest, in each
    step for another.

What to do
    Give each replica the same sum of squares: sort or pack by length. torchtitan: its text loader packs to a fixed
    length, look at your own; Megatron-LM: packed sequences (`--reset-attention-mask` lets documents differ: balance
    them when preprocessing); nanotron: packs in its collator; DeepSpeed: `data_efficiency` with
    `dynamic_batching: {enabled: true, lr_scaling_method: ...}`; our trainer: `--fault unequal-lengths` makes it, its
    own data is even.

How the gain is predicted
    The run is replayed with each replica doing the mean work of its peers between its synchronisations, step by step
    (`even_work=dp,per=step`).

When it is wrong
    When micro-batches differ for another reason that both passes share (experts chosen, a throttling device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import spot
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import BACKWARD, FORWARD, work_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet

CODE = "unequal-lengths"
TITLE = "Sequences of unequal lengths make micro-batches unequal"
NEEDS = (Input.ALL_RANKS,)
VARIES, TOGETHER, FEWEST = 0.05, 0.9, 8
AXES = (Axis.DP, Axis.DP_SHARD, Axis.DP_REPLICATE)


def look(tables: TableSet) -> Iterable[Draft]:
    """Correlate forward and backward of micro-batches."""
    graph = graph_of(tables)
    axis = next((each for each in AXES if graph.on_axis(str(each)).any()), None)
    passes = _passes(graph, tables)
    if axis is None or len(passes) < 1:
        return
    forward, backward, row = passes.T
    if len(forward) < FEWEST or min(forward.std(), backward.std()) < VARIES:
        return
    together = float(np.corrcoef(forward, backward)[0, 1])
    if together >= TOGETHER:
        longest = int(row[np.argmax(forward)])
        begin, end = int(graph.nodes.start[longest]), int(graph.nodes.end[longest])
        yield Draft(
            "forward and backward of micro-batches vary together",
            {"axis": str(axis)},
            {"correlation": together, "variation": float(forward.std()), "micro_batches": len(forward)}
            | dict(spot(graph, longest, begin, end)),
            Edit("even_work", str(axis), (("per", "step"),)),
            "give each replica the same sum of squared lengths",
            least_gain=0.03,
            rows=proof.largest("actions", "kind IN ('F', 'B') AND micro_batch >= 0", "device_end_ns - device_start_ns"),
            settings={"DeepSpeed": "data_efficiency.dynamic_batching"},
        )


def _passes(graph: Graph, tables: TableSet) -> np.ndarray:
    """Give for each micro-batch forward and backward over the mean of its rank, stage and step, and a node of it."""
    work, nodes = work_of(tables), graph.nodes
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (work.micro_batch >= 0) & (nodes.step >= 0))
    rows = rows[(work.phase[rows] == FORWARD) | (work.phase[rows] == BACKWARD)]
    if not len(rows):
        return np.zeros((0, 3))
    places = (nodes.rank[rows], work.stage[rows], nodes.step[rows])
    group = group_codes(*places, work.micro_batch[rows])
    one = first_rows(group)
    times = [
        np.bincount(group, np.where(work.phase[rows] == phase, nodes.duration[rows], 0))
        for phase in (FORWARD, BACKWARD)
    ]
    first = rows[one]
    home = group_codes(*(each[one] for each in places))
    good = np.bincount(home)[home] > 1
    relative = []
    for each in times:
        mean = (np.bincount(home, each) / np.bincount(home))[home]
        good &= mean > 0
        relative.append(each / np.maximum(mean, 1))
    return np.stack([*relative, first.astype(float)], axis=1)[good]
