"""Rule on sequences of unequal lengths: micro-batches whose forward and backward take longer together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.micro_batches import FEWEST, TOGETHER, evened, passes_of, waiting_axis
from usp_prof.findings.proof import spot
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay.build import graph_of
from usp_prof.tables.table_set import TableSet


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
        axis = waiting_axis(graph)
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
