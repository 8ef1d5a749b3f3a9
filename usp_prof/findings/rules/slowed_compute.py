"""Communication slows the compute that it runs beside.

What it finds
    Kernels (same name, grid and shapes) that take at least 1.1 times as long beside communication as they do alone,
    where being as fast as alone would shorten the step by 2 % or more.

Why it costs time
    Communication kernels occupy multiprocessors and memory bandwidth: overlap is not free, and products that fill whole
    waves of the device fall into one wave more.

What to do
    Give communication fewer multiprocessors, or use copy engines: `NCCL_MAX_CTAS`, `NCCL_MAX_NCHANNELS`, user-buffer
    registration, `CUDA_DEVICE_MAX_CONNECTIONS`. torchtitan: `compile.enable` for fewer, larger kernels, symmetric
    memory with `parallelism.enable_async_tensor_parallel`; Megatron-LM: `--nccl-ub` with
    `--ddp-bucket-size`, `--tp-comm-overlap` with user buffers; nanotron: only NCCL's environment; DeepSpeed:
    `overlap_comm: false` where the slowing costs more than the overlap brings; our trainer: only NCCL's environment.

How the gain is predicted
    The run is replayed with these kernels as fast as alone, and communication as fast as it was (`no_interference`): a
    bound, since communication that gets less of the device takes longer.

When it is wrong
    When the kernels beside communication differ from those alone in something that name, grid and shapes do not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.operations import interference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "slowed-compute"
TITLE = "Communication slows the compute that it runs beside"
SLOWED = 1.1


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare kernels beside communication with the same kernels alone."""
    graph = graph_of(tables)
    found = interference(graph, tables)
    rows = found.ratio > 1
    if not rows.any():
        return
    duration = graph.nodes.duration
    slowed = float(duration[rows].sum() / (duration[rows] / found.ratio[rows]).sum())
    if slowed >= SLOWED:
        yield Draft(
            f"compute beside communication takes {slowed:.2f} times as long as alone",
            {},
            {"kernels": int(rows.sum()), "kinds_compared": found.kinds, "ratio": slowed}
            | dict(longest(graph, rows, np.asarray(duration))),
            Edit("no_interference"),
            "give communication fewer multiprocessors",
            basis=Basis.BOUND,
            rows=proof.heaviest(graph, rows),
            settings={"NCCL": "NCCL_MAX_CTAS", "Megatron-LM": "--nccl-ub"},
        )
