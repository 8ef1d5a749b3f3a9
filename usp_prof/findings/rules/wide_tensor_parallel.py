"""Tensor parallelism reaches beyond the island of fast links.

What it finds
    Groups of the axis `tp` whose members lie on several hosts, on a device whose link is in the table of devices, where
    the rate of that link would shorten the step by 2 % or more.

Why it costs time
    Inside a node NVLink moves hundreds of GB/s, between nodes a network card some tens; tensor parallelism has the most
    traffic of all axes and nothing to hide it behind.

What to do
    Keep the degree at or below the devices of a node, and let the axis vary fastest over ranks. torchtitan:
    `parallelism.tensor_parallel_degree`; Megatron-LM: `--tensor-model-parallel-size`; nanotron: `parallelism.tp`;
    DeepSpeed: the degree of the `mpu` that it is given; our trainer: `--tp`. Use pipeline or data parallelism across
    nodes instead.

How the gain is predicted
    The run is replayed with the axis' transfers at three quarters of the device's link, as large collectives inside a
    node reach it (`comm_faster`): modelled.

When it is wrong
    When the fast links span several nodes (NVL72), or the hosts' names are those of containers on one machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import collectives
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "wide-tensor-parallel"
TITLE = "Tensor parallelism reaches beyond the island of fast links"
NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)
REACHED = 0.75
"""Large collectives inside a node reach about so much of the link."""


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare the rate of tensor-parallel collectives between hosts with the link inside one."""
    found = collectives.compute(tables)
    rows = (found.points.axis == str(Axis.TP)) & found.points.inter_node
    if not rows.any() or not found.link_peak > 0:
        return
    measured = float(np.median(found.points.busbw[rows]))
    faster = REACHED * found.link_peak / measured
    if faster > 1:
        graph = graph_of(tables)
        yield Draft(
            "tp groups lie on several hosts",
            {"axis": str(Axis.TP)},
            {"calls": int(rows.sum()), "bus_bytes_per_second": measured, "link_bytes_per_second": found.link_peak}
            | dict(longest(graph, graph.on_axis(Axis.TP), graph.transfer)),
            Edit("comm_faster", f"{faster:.3g}", (("axis", str(Axis.TP)),)),
            "keep tensor parallelism inside a node",
            is_choice=True,
            rows=proof.largest("calls", "axis = 'tp' AND inter_node", "transfer_ns"),
            basis=Basis.MODELLED,
            settings={"torchtitan": "parallelism.tensor_parallel_degree", "nanotron": "parallelism.tp"},
        )
