"""Large collectives are far below what the link allows.

What it finds
    Collectives of 16 MB and more inside a node whose bus bandwidth is less than a third of the device's link, where
    three quarters of it would shorten the step by 2 % or more. Healthy ones reach a half to nine tenths; less than a
    third is a fallback to PCIe or to sockets, a link that is down, or a poor algorithm. Of an axis with several groups
    the best counts: one slow group is a `slow-link`.

Why it costs time
    At these sizes a collective's time is its bytes over the bandwidth.

What to do
    Look at `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and `NCCL_DEBUG=INFO` (which transport and algorithm each
    channel has), run `nccl-tests`, check that peer access and `NCCL_P2P_DISABLE`, `NCCL_ALGO`, `NCCL_PROTO`,
    `NCCL_MAX_NCHANNELS` are not set, and that ranks are placed so that fast axes stay inside the node. torchtitan,
    Megatron-LM, nanotron, DeepSpeed and our trainer take this from NCCL's environment; Megatron-LM
    `--nccl-communicator-config-path` and DeepSpeed's `.deepspeed_env` set it by group and by node.

How the gain is predicted
    The run is replayed with the axis' transfers as much faster as three quarters of the link are (`comm_faster`):
    modelled.

When it is wrong
    When the device's link is not what the table of devices says (a PCIe board, half the links).
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
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "low-bandwidth"
TITLE = "Large collectives are far below what the link allows"
NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)
LARGE_BYTES = 16_000_000
LOW, REACHED = 1 / 3, 0.75
FEWEST = 3


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare each axis' large collectives with the link."""
    found = collectives.compute(tables)
    if not found.link_peak > 0:
        return
    points = found.points
    large = (points.bytes >= LARGE_BYTES) & ~points.inter_node & (points.axis != "pp")
    for axis in sorted({str(each) for each in points.axis[large]}):
        rows = large & (points.axis == axis)
        groups = sorted({str(each) for each in points.group[rows]})
        by_group = [float(np.median(points.busbw[rows & (points.group == group)])) for group in groups]
        # The best group tells what the axis reaches: one that is slower than the others is a slow link.
        measured = max(by_group)
        if rows.sum() < FEWEST or measured >= LOW * found.link_peak:
            continue
        graph = graph_of(tables)
        yield Draft(
            f"{axis} collectives reach {100 * measured / found.link_peak:.0f} % of the link",
            {"axis": axis},
            {
                "calls": int(rows.sum()),
                "median_bytes": float(np.median(points.bytes[rows])),
                "bus_bytes_per_second": measured,
                "link_bytes_per_second": found.link_peak,
                **longest(graph, graph.on_axis(axis), graph.transfer),
            },
            Edit("comm_faster", f"{REACHED * found.link_peak / measured:.3g}", (("axis", axis),)),
            "look at the transport and algorithm that NCCL chose, and at the links",
            covers=("slow-link",),
            basis=Basis.MODELLED,
            rows=proof.largest(
                "calls", f"{proof.equals('axis', axis)} AND bytes >= {LARGE_BYTES} AND NOT inter_node", "transfer_ns"
            ),
            settings={"NCCL": "NCCL_DEBUG=INFO"},
        )
