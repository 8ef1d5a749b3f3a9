"""Memory snapshots: the rank of each, as named before it or by its file's name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.inputs.memory_snapshot import read_memory_snapshot

if TYPE_CHECKING:
    from usp_prof.model.memory_snapshot import MemorySnapshot

_GIVEN = re.compile(r"(?P<rank>\d+)=(?P<path>.+)", re.DOTALL)
_NAMED = re.compile(r"rank[-_.]?(?P<rank>\d+)", re.IGNORECASE)


def read_snapshots(given: str) -> tuple[MemorySnapshot, ...]:
    """Read the devices of one snapshot, given as FILE or RANK=FILE."""
    match = _GIVEN.match(given)
    path = Path(match["path"] if match else given)
    said = match or _NAMED.search(path.name)
    rank = int(said["rank"]) if said else -1
    return tuple(replace(one, rank=rank, name=path.name) for one in read_memory_snapshot(path))
