"""Memory snapshot of one device: what is in use, by whom, and its history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code that allocated memory in use at the snapshot."""

    where: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, eq=False)
class MemorySnapshot:
    """One device at the snapshot, and its history: bytes allocated or freed by each event.

    `change` is the memory of tensors, `held_change` that of the allocator; both follow `time_us`.
    """

    device: int
    reserved: int
    allocated: int
    largest_free: int
    segments: int
    out_of_memory: int
    time_us: Ints
    change: Ints
    held_change: Ints
    sites: tuple[Site, ...] = ()
    rank: int = -1
    name: str = ""

    @property
    def in_use(self) -> Ints:
        """Bytes in use after each event of the history, which ends at the snapshot."""
        return _course(self.allocated, self.change)[1:]

    @property
    def held(self) -> Ints:
        """Bytes held by the allocator after each event."""
        return _course(self.reserved, self.held_change)[1:]

    @property
    def peak(self) -> int:
        """Most bytes in use in the history; bytes in use now without a history."""
        return int(_course(self.allocated, self.change).max())

    @property
    def held_peak(self) -> int:
        """Most bytes held by the allocator in the history."""
        return int(_course(self.reserved, self.held_change).max())

    @property
    def held_at_peak(self) -> int:
        """Bytes held by the allocator when most were in use."""
        return int(_course(self.reserved, self.held_change)[_course(self.allocated, self.change).argmax()])

    @property
    def fragmentation(self) -> float:
        """Reserved bytes that no tensor uses, divided by reserved bytes."""
        return (self.reserved - self.allocated) / self.reserved if self.reserved else 0.0


def _course(last: int, change: Ints) -> Ints:
    """Return the bytes before the first event and after each event, from the bytes after the last one."""
    return last - int(change.sum()) + np.cumsum(np.append(0, change))
