"""Copies from pageable memory hold up the host.

What it finds
    Copies between the device and pageable host memory (Kineto names them `Pageable`), where pinned memory would shorten
    the step by 1 % or more. A copy of a loss takes a few microseconds: less than that is one of those.

Why it costs time
    A copy from pageable memory goes through a staging buffer: it is slower, and the call returns only when it is done,
    so that nothing is launched meanwhile.

What to do
    Pin the memory and copy without blocking: `DataLoader(pin_memory=True)`, `tensor.to(device, non_blocking=True)`.
    torchtitan: `training.dataloader.pin_memory = true`; Megatron-LM: its loaders pin, look at your own; nanotron: its
    loader pins, look at what the collator adds; DeepSpeed: `deepspeed_io(pin_memory=True)`, and
    `offload_optimizer.pin_memory: true`; our trainer: pins by itself.

How the gain is predicted
    The run is replayed with the host going on at once after these copies, and each at 20 GB/s, which pinned memory
    reaches over PCIe 4 (`pinned_copies`): modelled.

When it is wrong
    When the host needs what it copied back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.places import longest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits.blocking import blocks, pageable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "blocking-copies"
TITLE = "Copies from pageable memory hold up the host"
NEEDS = (Input.LAUNCHES,)


def look(tables: TableSet) -> Iterable[Draft]:
    """Count pageable copies, and the calls in which the host waits for copies."""
    graph = graph_of(tables)
    copies = pageable(graph)
    waits = blocks(graph, tables, copies_only=True)
    if copies.any():
        yield Draft(
            f"{int(copies.sum())} copies of pageable memory hold up the host",
            {},
            {
                "copies": int(copies.sum()),
                "copy_ns": int(graph.nodes.duration[copies].sum()),
                "host_waits": int(waits.sum()),
                **longest(graph, copies),
            },
            Edit("pinned_copies"),
            "pin the host memory and copy without blocking",
            least_gain=0.01,
            rows=proof.heaviest(graph, copies),
            settings={"torch": "pin_memory=True, non_blocking=True", "DeepSpeed": "offload_optimizer.pin_memory"},
        )
