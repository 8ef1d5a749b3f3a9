"""The host waits for the device within the step.

What it finds
    Device traces with calls inside the step in which the host waits for the device (`cudaStreamSynchronize`,
    `cudaDeviceSynchronize`, a copy to the host), more than one a step, whose absence would shorten the step by 2 % or
    more. The source is named: the op, mark or function around the call that costs most. One wait a step is left: a loss
    has to be read some time.

Why it costs time
    While the host waits it launches nothing; when the device is done it stands idle until the next launch arrives.

What to do
    Take the call out of the step: no `.item()`, `print(loss)`, `.cpu()`, boolean tests or `nonzero` on device tensors.
    torchtitan: raise `metrics.log_freq`; Megatron-LM: `--log-interval` larger, `--no-check-for-nan-in-loss-and-grad`,
    `--timing-log-level 0`; nanotron: `logging.iteration_step_info_interval` larger; DeepSpeed: `steps_per_print`
    larger, `wall_clock_breakdown: false`; our trainer: it has none unless `--fault blocking-sync` puts one there.
    `torch.cuda.set_sync_debug_mode("warn")` shows each.

How the gain is predicted
    The run is replayed with the host going on at once after all such calls but the last of each step (`no_blocking`).

When it is wrong
    When the value decides what is launched next (routing without padding, early stopping).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import host
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.blocking import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.measures.ranges import SyncStat
    from usp_prof.tables.table_set import TableSet

CODE = "blocking-sync"
TITLE = "The host waits for the device within the step"
NEEDS = (Input.LAUNCHES,)


def look(tables: TableSet) -> Iterable[Draft]:
    """Count the waits beyond one a step, and name the costliest source."""
    graph = graph_of(tables)
    rows = blocks(graph, tables, copies_only=False)
    if not rows.any():
        return
    syncs = host.compute(tables).syncs
    worst = max(_by_cause(syncs).items(), key=lambda item: (item[1], item[0]), default=("", 0))
    steps = len(np.unique(np.stack([graph.nodes.rank[rows], graph.nodes.step[rows]]), axis=1).T)
    yield Draft(
        f"the host waits for the device {rows.sum() / steps:.0f} times a step, most in {worst[0] or 'an unknown op'}",
        {},
        {
            "waits_per_step": float(rows.sum() / steps),
            "source": worst[0],
            "source_ns": worst[1],
            **longest(graph, rows, np.maximum(graph.gap, 0)),
        },
        Edit("no_blocking"),
        f"take the wait in {worst[0] or 'it'} out of the step",
        rows=proof.heaviest(graph, rows, np.maximum(graph.gap, 0)),
        settings={
            "Megatron-LM": "--no-check-for-nan-in-loss-and-grad",
            "DeepSpeed": "wall_clock_breakdown",
            "torchtitan": "metrics.log_freq",
        },
    )


def _by_cause(syncs: Iterable[SyncStat]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for sync in syncs:
        sums[sync.cause] = sums.get(sync.cause, 0) + sync.time_ns
    return sums
