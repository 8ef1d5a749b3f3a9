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
        return np.asarray(self.allocated - int(self.change.sum()) + np.cumsum(self.change))

    @property
    def held(self) -> Ints:
        """Bytes held by the allocator after each event."""
        return np.asarray(self.reserved - int(self.held_change.sum()) + np.cumsum(self.held_change))

    @property
    def peak(self) -> int:
        """Most bytes in use in the history; bytes in use now without a history."""
        return int(self._from_the_start(self.in_use, self.allocated - int(self.change.sum())).max())

    @property
    def held_peak(self) -> int:
        """Most bytes held by the allocator in the history."""
        return int(self._from_the_start(self.held, self.reserved - int(self.held_change.sum())).max())

    @property
    def held_at_peak(self) -> int:
        """Bytes held by the allocator when most were in use."""
        used = self._from_the_start(self.in_use, self.allocated - int(self.change.sum()))
        held = self._from_the_start(self.held, self.reserved - int(self.held_change.sum()))
        return int(held[int(used.argmax())])

    @staticmethod
    def _from_the_start(after: Ints, before: int) -> Ints:
        return np.concatenate([np.array([before], np.int64), after])

    @property
    def fragmentation(self) -> float:
        """Reserved bytes that no tensor uses, divided by reserved bytes."""
        return (self.reserved - self.allocated) / self.reserved if self.reserved else 0.0
