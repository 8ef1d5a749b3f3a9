"""Sharded weights are gathered while nothing else runs.

What it finds
    ZeRO-3 (FSDP) runs whose all-gathers in forward and backward are waited for, so that asking for each one while the
    layer before computes would shorten the step by 4 % or more (the first gather of a pass cannot be hidden).

Why it costs time
    A layer cannot begin before its weights are there. Asked for at that moment, the gather takes its whole time from
    the step, once in forward and, where weights are freed in between, once more in backward.

What to do
    Gather ahead, and free weights later. torchtitan: FSDP2 prefetches forward by itself; set
    `parallelism.fsdp_reshard_after_forward = "never"` where memory allows, which drops the second gather; Megatron-LM:
    `--overlap-param-gather` with `--use-distributed-optimizer`; nanotron: has no ZeRO-3, use
    `optimizer.zero_stage: 1`; DeepSpeed: `overlap_comm: true`, a larger `stage3_prefetch_bucket_size` and
    `stage3_max_reuse_distance`; our trainer: `--prefetch`, or `--zero 2`.

How the gain is predicted
    The run is replayed with each gather asked for when the layer before begins (`prefetch=on`).

When it is wrong
    When weights of two layers at once do not fit in memory, and when gathers slow the compute that they run beside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "exposed-gathers"
TITLE = "Sharded weights are gathered while nothing else runs"
NEEDS = (Input.ALL_RANKS,)
AXES = (Axis.DP, Axis.DP_SHARD)
FEWEST = 2


def look(tables: TableSet) -> Iterable[Draft]:
    """Look for weights that are gathered inside forward and backward."""
    gathers = {axis: sum(_inside(tables, rank, str(axis)) for rank in tables.ranks) for axis in AXES}
    axis = max(AXES, key=lambda each: gathers[each])
    if gathers[axis] < FEWEST * len(tables.ranks):
        return
    graph = graph_of(tables)
    steps = max(len(tables.columns("steps", rank)) for rank in tables.ranks)
    yield Draft(
        f"weights are gathered on {axis} while nothing else runs",
        {"axis": str(axis)},
        {
            "gathers_per_rank_and_step": gathers[axis] / steps / len(tables.ranks),
            **longest(graph, graph.on_axis(str(axis)), graph.transfer),
        },
        Edit("prefetch", "on"),
        "gather each layer's weights while the layer before computes",
        least_gain=0.04,
        rows=proof.largest("collectives", f"{proof.equals('axis', axis)} AND op = 'all_gather'", "dur_ns"),
        settings={
            "torchtitan": "parallelism.fsdp_reshard_after_forward",
            "DeepSpeed": "stage3_prefetch_bucket_size",
            "Megatron-LM": "--overlap-param-gather",
        },
    )


def _inside(tables: TableSet, rank: int, axis: str) -> int:
    """Count a rank's gathers in forward and backward; those after the optimizer are of ZeRO-1 and -2."""
    parts = tables.columns("collectives", rank)
    rows = parts.matches("axis", axis) & parts.matches("op", "all_gather")
    return int((rows & parts.matches("phase", "forward", "backward")).sum())
