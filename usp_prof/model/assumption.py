"""What does the user tell us that no trace holds? The model, the device, the FLOP convention, memory snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof import conventions

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.model.memory_snapshot import MemorySnapshot


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is given by hand; each stands above what the manifest or the trace says."""

    model: ModelEntry | None = None
    device: str = ""
    convention: str = conventions.DEFAULT
    peak_flops: float = 0.0
    snapshots: tuple[MemorySnapshot, ...] = ()


NOTHING_ASSUMED = Assumptions()
