"""What is a file that was found, and what is a run of them?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace file and the rank that it speaks of."""

    path: Path
    rank: int
    rank_source: str
    world_size: int = -1
    host: str = ""
    start_ns: int = -1
    step: int = -1
    device: str = ""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """One run: a trace file a rank, in rank order."""

    name: str
    files: tuple[TraceFile, ...]
    start_ns: int = -1

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders its files are in and those above, nearest first, where a manifest may lie."""
        nearest = sorted({file.path.parent for file in self.files}, key=lambda folder: (-len(folder.parts), folder))
        return tuple(dict.fromkeys([*nearest, *(folder.parent for folder in nearest)]))
