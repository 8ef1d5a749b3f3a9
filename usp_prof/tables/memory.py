"""How much memory was in use, when?"""

from __future__ import annotations

from usp_prof.model.schema import EVENT, RANK, START, STEP, Schema, integer

SCHEMA = Schema(
    "memory",
    "Allocator events: each allocation and release with the totals after it.",
    (
        RANK,
        EVENT,
        START,
        integer("device_type", "0 for CPU, 1 for CUDA, as PyTorch numbers them."),
        integer("device", "Device index."),
        integer("address", "Address."),
        integer("bytes", "Bytes taken, negative when given back.", "bytes"),
        integer("allocated_bytes", "Total allocated afterwards.", "bytes"),
        integer("reserved_bytes", "Total reserved afterwards.", "bytes"),
        STEP,
    ),
)
