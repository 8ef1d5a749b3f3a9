"""The host stops for a while: garbage collection, preemption, a checkpoint.

What it finds
    Think times of a host that are far beyond its ordinary ones (20 times the 99th percentile and at least 2 ms),
    outside the data loader, the allocator's calls and waits for the device, whose removal would shorten the mean step
    by 2 % or more. It names the innermost op, annotation or Python frame in which the longest pause lies.

Why it costs time
    The device runs dry, and since ranks pause at different moments, each pause stops all ranks that communicate with
    it.

What to do
    Look at what ran in the pause; where nothing tells, record with `with_stack=True`. If it is Python's garbage
    collector, collect at one moment on all ranks: `gc.disable()` and `gc.collect()` every so many steps (torchtitan:
    `training.gc_freq`; Megatron-LM: `--manual-gc --manual-gc-interval 100`), `gc.freeze()` after the first step; save
    checkpoints in the background.
    nanotron and DeepSpeed have no setting: call `gc` in your own loop; our trainer makes it with `--fault pause`.

How the gain is predicted
    The run is replayed with these pauses removed (`no_pauses`).

When it is wrong
    When the recording holds a pause that is rare: the mean over few recorded steps overstates it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.places import spot
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.tables import clock
from usp_prof.whatif.edits import pauses, think_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "host-pause"
TITLE = "The host stops for a while"
GARBAGE = re.compile(r"\bcollect\b|gc\.py|garbage", re.IGNORECASE)
"""Python's collector as a stack names it: `<built-in function collect>`."""
HOST_RANGES = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
HELD = 0.8
"""Share of the pause that a range must hold."""
COLLECT = "collect garbage at one moment on all ranks"
UNTOLD = "nothing in the trace tells what ran: record with stacks (with_stack=True)"
SETTINGS = {"torchtitan": "training.gc_freq", "Megatron-LM": "--manual-gc --manual-gc-interval"}


def look(tables: TableSet) -> Iterable[Draft]:
    """Find pauses of the hosts."""
    graph = graph_of(tables)
    found = pauses(graph, tables)
    if not len(found):
        return
    think = think_times(graph)[found]
    paused = np.zeros(len(graph.nodes), dtype=bool)
    paused[found] = True
    node, length = int(found[np.argmax(think)]), int(think.max())
    rank, end = int(graph.nodes.rank[node]), int(graph.nodes.start[node])
    ran = _ran_in(tables, rank, int(clock.of(tables).local(rank, np.array([end]))[0]) - length, length)
    collects = GARBAGE.search(ran) is not None
    times = "once" if len(found) == 1 else f"{len(found)} times"
    yield Draft(
        f"the host pauses {times}, longest on rank {rank}{f', in {ran}' if ran else ''}",
        {"rank": rank, "step": int(graph.nodes.step[node])},
        {
            "pauses": len(found),
            "longest_ns": length,
            "total_ns": int(think.sum()),
            "ran_in_longest": ran,
            **spot(graph, node, end - length, end),
        },
        Edit("no_pauses"),
        COLLECT if collects else f"look at what {ran} does there" if ran else UNTOLD,
        settings=SETTINGS if collects else {},
        rows=proof.heaviest(graph, paused, think_times(graph)),
    )


def _ran_in(tables: TableSet, rank: int, begin: int, length: int) -> str:
    """Name the shortest range of the host that holds a span of time, on the rank's own clock; empty where none does."""
    events = tables.columns("events", rank)
    codes, names = events.codes("category")
    of_host = lookup([name in HOST_RANGES for name in names], codes, missing=False)
    start, duration = events["start_ns"], events["dur_ns"]
    covered = np.minimum(start + duration, begin + length) - np.maximum(start, begin)
    rows = np.flatnonzero(of_host & (covered >= HELD * length))
    codes, names = events.codes("name")
    # The step holds every pause, and says nothing of it.
    rows = rows[[not names[code].startswith("ProfilerStep#") for code in codes[rows].tolist()]]
    return names[codes[rows[np.argmin(duration[rows])]]] if len(rows) else ""
