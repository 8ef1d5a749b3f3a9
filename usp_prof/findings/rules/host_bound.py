"""The device waits for the host to launch its work.

What it finds
    Device traces in which kernels that follow each other at once, without waiting for their launches, would shorten the
    step by 5 % or more. Less is ordinary: a few launches are late in every run.

Why it costs time
    A kernel that is shorter than its launch (about 5 us of host time) leaves the device idle until the next arrives.

What to do
    Make the work larger or the launches fewer: CUDA graphs (`torch.compile(mode="reduce-overhead")`, Megatron-LM
    `--enable-cuda-graph`), `torch.compile`, fused optimizers (`fused=True`), larger micro-batches; no synchronisation
    (`.item()`, printing a loss) inside the step.
    torchtitan: `compile.enable = true`; nanotron: larger `tokens.micro_batch_size`; DeepSpeed: `engine.compile()`;
    our trainer: `--compile`.

How the gain is predicted
    The run is replayed with kernels waiting for each other and for communication only, and a host that no longer thinks
    before each launch (`no_launch_gaps`). The stated error reaches to a host whose launches take half as long.

When it is wrong
    When the host waits for data or a value from the device that the graph would need as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "host-bound"
TITLE = "The device waits for launches"


def look(tables: TableSet) -> Iterable[Draft]:
    """Ask what the step would be without waiting for launches."""
    launches = int((graph_of(tables).edges.kind == EdgeKind.LAUNCH).sum())
    if launches:
        yield Draft(
            "the device waits for the host to launch its kernels",
            {},
            {"launches": launches},
            Edit("no_launch_gaps"),
            "CUDA graphs, torch.compile, fused kernels or a larger micro-batch",
            least_gain=0.05,
            # Work that begins as soon as it is launched: the device had nothing else to do.
            rows=f"SELECT * FROM launches WHERE kernels > 0 AND delay_ns >= 0 ORDER BY delay_ns LIMIT {proof.MOST}",
            covers=("slow-host", "memory-pressure", "unfused-optimizer"),
            settings={"torch": 'torch.compile(mode="reduce-overhead")', "Megatron-LM": "--enable-cuda-graph"},
        )
