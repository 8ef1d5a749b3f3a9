"""Gradients are synchronised while nothing else runs.

What it finds
    Communication of the data-parallel axes (`dp`, `dp_replicate`, `dp_shard`) that is exposed, so that overlapping it
    with the backward would shorten the step by 4 % or more (a little is left at the end of every backward).

Why it costs time
    The gradient of a layer is ready long before the backward of all layers has ended; synchronising at the end leaves
    the device idle for as long as that takes.

What to do
    Overlap it: DDP with buckets (`bucket_cap_mb`), no `no_sync` around the last micro-batch; Megatron-LM
    `--overlap-grad-reduce` and `--overlap-param-gather`; DeepSpeed `overlap_comm: true`; FSDP2 overlaps by itself
    unless a reshard or an explicit wait stands in the way; nanotron overlaps with its bucketed gradient accumulator.
    torchtitan has FSDP2's overlap; our trainer overlaps unless `--fault unoverlapped` forbids it (`--bucket-mb`).

How the gain is predicted
    The run is replayed with each reduction beginning when its share of the last backward is done, and the optimizer
    alone waiting for it (`sync_overlapped`): what backward cannot cover stays exposed.

When it is wrong
    When communication slows the compute that it would run beside (shared links, few SMs); when gradients are needed
    early (clipping by global norm is before the optimizer and stays).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "exposed-gradient-sync"
TITLE = "Gradients are synchronised while nothing else runs"
REDUCES = ("all_reduce", "reduce_scatter")
AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD)


def look(tables: TableSet) -> Iterable[Draft]:
    """Ask of each data-parallel axis what hiding its reductions would save; gathers of weights are another matter."""
    graph = graph_of(tables)
    for axis in AXES:
        rows = graph.on_axis(str(axis))
        if not rows.any():
            continue
        if not _reductions(tables, str(axis)):
            continue
        yield Draft(
            f"gradients are synchronised on {axis} while nothing else runs",
            {"axis": str(axis)},
            {"parts": int(rows.sum()), "transfer_ns": int(graph.transfer[rows & graph.tied].sum())}
            | dict(longest(graph, rows, graph.transfer)),
            Edit("sync_overlapped", places=(("axis", str(axis)),)),
            "overlap the gradients' synchronisation with the backward",
            least_gain=0.04,
            rows=proof.largest("collectives", f"{proof.equals('axis', axis)} AND op IN {REDUCES}", "dur_ns"),
            settings={
                "Megatron-LM": "--overlap-grad-reduce",
                "DeepSpeed": "overlap_comm",
                "DDP": "bucket_cap_mb",
            },
        )


def _reductions(tables: TableSet, axis: str) -> int:
    """Count the operations that reduce gradients on an axis; without one there is nothing to overlap."""
    parts = (tables.columns("collectives", rank) for rank in tables.ranks)
    return sum(int((each.matches("axis", axis) & each.matches("op", *REDUCES)).sum()) for each in parts)
