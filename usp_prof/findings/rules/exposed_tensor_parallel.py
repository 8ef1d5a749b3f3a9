"""Tensor-parallel communication runs while nothing else does.

What it finds
    Communication of the axis `tp` (sequence parallelism included) whose hiding behind compute would shorten the step by
    5 % or more. It is an opportunity: most implementations leave these collectives exposed.

Why it costs time
    Every layer needs two collectives forward and two backward whose result the next product waits for.

What to do
    Split products and collectives into pieces that overlap, or use fewer tensor-parallel ranks. torchtitan:
    `parallelism.enable_async_tensor_parallel = true` with `compile.enable = true`; Megatron-LM: `--tp-comm-overlap`
    with `--sequence-parallel` (needs Transformer Engine); nanotron: `parallelism.tp_linear_async_communication: true`
    with `tp_mode: REDUCE_SCATTER`; DeepSpeed: has none of its own, lower the degree of the model it is given; our
    trainer: lower `--tp`.

How the gain is predicted
    The run is replayed with nothing but the next step waiting for this axis (`comm_hidden`): a bound, since the first
    and last piece of every collective stay exposed.

When it is wrong
    When pieces of the products are too small to fill the device, which is soon so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "exposed-tensor-parallel"
TITLE = "Tensor-parallel communication runs while nothing else does"


def look(tables: TableSet) -> Iterable[Draft]:
    """Ask what hiding the axis would save."""
    graph = graph_of(tables)
    rows = graph.on_axis(Axis.TP)
    if rows.any():
        yield Draft(
            "tensor-parallel communication runs while nothing else does",
            {"axis": str(Axis.TP)},
            {"parts": int(rows.sum()), "transfer_ns": int(graph.transfer[rows & graph.tied].sum())}
            | dict(longest(graph, rows, graph.transfer)),
            Edit("comm_hidden", places=(("axis", str(Axis.TP)),)),
            "overlap pieces of products and collectives, or lower the tensor-parallel degree",
            least_gain=0.05,
            rows=proof.heaviest(graph, rows, graph.transfer),
            opportunity=True,
            basis=Basis.BOUND,
            settings={
                "torchtitan": "parallelism.enable_async_tensor_parallel",
                "Megatron-LM": "--tp-comm-overlap",
                "nanotron": "parallelism.tp_linear_async_communication",
            },
        )
