"""The host stops for a while: garbage collection, preemption, a checkpoint.

What it finds
    Think times of a host that are far beyond its ordinary ones (20 times the 99th percentile and at least 2 ms),
    outside the data loader, whose removal would shorten the mean step by 2 % or more.

Why it costs time
    The device runs dry, and since ranks pause at different moments, each pause stops all ranks that communicate with
    it.

What to do
    Collect garbage at one moment on all ranks: `gc.disable()` and `gc.collect()` every so many steps (torchtitan:
    `training.gc_freq`; Megatron-LM: `--manual-gc --manual-gc-interval 100`), `gc.freeze()` after the first step; save
    checkpoints in the background.
    nanotron and DeepSpeed have no setting: call `gc` in your own loop; our trainer makes it with `--fault pause`.

How the gain is predicted
    The run is replayed with these pauses removed (`no_pauses`).

When it is wrong
    When the recording holds a pause that is rare: the mean over few recorded steps overstates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.whatif.build import graph_of
from usp_prof.whatif.edits import pauses, think_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "host-pause"
TITLE = "The host stops for a while"


def look(tables: TableSet) -> Iterable[Draft]:
    """Find pauses of the hosts."""
    graph = graph_of(tables)
    found = pauses(graph, tables)
    if not len(found):
        return
    think = think_times(graph)[found]
    longest = int(found[np.argmax(think)])
    yield Draft(
        f"the host pauses {len(found)} times, longest on rank {int(graph.nodes.rank[longest])}",
        {"rank": int(graph.nodes.rank[longest]), "step": int(graph.nodes.step[longest])},
        {"pauses": len(found), "longest_ns": int(think.max()), "total_ns": int(think.sum())},
        Edit("no_pauses"),
        "collect garbage at one moment on all ranks; save checkpoints in the background",
        settings={"torchtitan": "training.gc_freq", "Megatron-LM": "--manual-gc --manual-gc-interval"},
    )
