"""One rank's host launches slower than the others'.

What it finds
    Device traces in which the host of one rank takes at least 1.25 times as long from launch to launch as those of the
    others do in the median, where launching as fast would shorten the step by 2 % or more. Hosts of one kind differ by
    a tenth.

Why it costs time
    The device of that rank waits for launches, arrives late in its collectives, and all others wait for it; its
    kernels look healthy.

What to do
    Look at the host: clock governor, other processes on its cores, NUMA placement (`numactl`, `nvidia-smi topo -m`),
    memory bandwidth, a debugger or profiler left on. torchtitan, Megatron-LM, nanotron, DeepSpeed and our trainer have
    no setting for it beyond fewer launches: see `usp-prof explain host-bound`; DeepSpeed's launcher pins with
    `--bind_cores_to_rank`.

How the gain is predicted
    The run is replayed with this host's own time (thinking, pauses, launches) at the median of its peers', piece by
    piece of each step (`host_as_peers`).

When it is wrong
    When the rank launches other work by design (the last pipeline stage with the loss, a rank that logs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.whatif.edits.blocking import host_slowness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "slow-host"
TITLE = "One rank's host launches slower than the others'"
NEEDS = (Input.ALL_RANKS, Input.LAUNCHES)
SLOW = 1.25


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare the hosts' times between launches."""
    graph = graph_of(tables)
    for rank, ratio in host_slowness(graph).items():
        if ratio >= SLOW:
            mine = (graph.nodes.kind == NodeKind.HOST) & (graph.nodes.rank == rank)
            yield Draft(
                f"the host of rank {rank} takes {ratio:.2f} times as long to launch as the others",
                {"rank": rank},
                {"ratio": ratio, "launches": int(mine.sum())}
                | dict(longest(graph, mine, np.maximum(graph.gap, 0) + graph.nodes.duration)),
                Edit("host_as_peers", str(rank)),
                "look at the host's cores, clocks and memory placement",
                settings={"DeepSpeed": "--bind_cores_to_rank"},
                rows=proof.heaviest(graph, mine, np.maximum(graph.gap, 0) + graph.nodes.duration),
            )
