"""The allocator takes and gives back device memory within the step.

What it finds
    Runs in which `cudaMalloc`, `cudaFree` and their like are called inside the recorded steps, after warm-up, and whose
    absence would shorten the step by 1 % or more. How full the device is stands beside it: retries happen when the
    cache is full or broken into pieces.

Why it costs time
    A device allocation stalls the host, and freeing waits for all work on the device: the caching allocator does both
    when it finds no fitting block, and a retry does it for the whole cache.

What to do
    Leave more room or break memory less: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, smaller micro-batches, no
    `empty_cache()` inside the step. torchtitan: sets expandable segments in its scripts, `training.local_batch_size`
    smaller; Megatron-LM: `--empty-unused-memory-level 0`, `--micro-batch-size` smaller or `--recompute-activations`;
    nanotron: `tokens.micro_batch_size` smaller; DeepSpeed: `contiguous_gradients: true`, smaller
    `stage3_max_live_parameters`; our trainer: `--micro-batch` smaller or `--recompute selective`.

How the gain is predicted
    The run is replayed without the host's time in these calls (`no_allocator_calls`).

When it is wrong
    When the recorded steps are warm-up, in which every run allocates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import memory
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.model.edit import Edit
from usp_prof.replay.host_gaps import TAKES_MEMORY, allocating
from usp_prof.tables import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "memory-pressure"
TITLE = "The allocator takes and gives back device memory within the step"
NEEDS = (Input.LAUNCHES,)


def look(tables: TableSet) -> Iterable[Draft]:
    """Add up the host's time in device allocations."""
    spent, place = {}, {}
    for rank in tables.ranks:
        begin, end = allocating(tables.columns("launches", rank))
        if len(begin):
            most = int(np.argmax(end - begin))
            spent[rank], place[rank] = int((end - begin).sum()), (begin[most], end[most])
    if not spent:
        return
    worst = max(spent, key=lambda rank: (spent[rank], -rank))
    found = memory.compute(tables)
    full = {peak.rank: 1 - found.headroom(peak) for peak in found.peaks}.get(worst, float("nan"))
    first, last = (int(clock.of(tables).align(worst, when)) for when in place[worst])
    yield Draft(
        f"the allocator takes device memory within the step, most on rank {worst}",
        {"rank": worst},
        {
            "calls_per_step": found.allocator_calls.get(worst, 0.0),
            "host_ns": spent[worst],
            "memory_in_use": full if np.isfinite(full) else "not known: record memory",
            "at_rank": worst,
            "start_ns": first,
            "end_ns": last,
        },
        Edit("no_allocator_calls"),
        "leave memory free, and let segments expand",
        least_gain=0.01,
        rows=proof.largest("launches", f"rank = {worst} AND regexp_matches(name, '{TAKES_MEMORY.pattern}')", "dur_ns"),
        settings={"torch": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    )
