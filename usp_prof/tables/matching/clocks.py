"""Clocks of all ranks, and the hosts that they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.tables.table_set import TableSet, memoized

SAME_CLOCK_TOLERANCE_NS = 1_000  # uncertainty of a device's timestamps between ranks of one clock


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Clocks of all ranks, ready to align times; arrays follow `ranks`, which is sorted."""

    ranks: Ints
    domain: Ints
    """Ranks with the same number share a clock."""
    component: Ints
    offset_ns: Ints
    drift_ppm: Floats
    reference_ns: Ints
    residual_p50_ns: Ints
    residual_p99_ns: Ints
    ties: Ints
    apart: Flags
    """The rank lacks calls that its peers have, or its clock jumps: it is not compared with other ranks."""
    contradicted: Flags
    """The rank shares a host name with others, but collectives show that it has a clock of its own."""
    jumps_ns: Ints
    """Jump of the rank's clock relative to the others during the window; 0 without a jump."""

    def align(self, rank: int | Ints, ns: ArrayLike) -> Ints:
        """Convert times of one rank, or of one rank per row, to the common clock."""
        when, row = np.asarray(ns, np.int64), np.searchsorted(self.ranks, rank)
        ppm = np.nan_to_num(self.drift_ppm)[row]
        drifted = np.rint((when - self.reference_ns[row]) * (ppm * 1e-6)).astype(np.int64)
        return np.asarray(when + self.offset_ns[row] + drifted)

    def local(self, rank: int, ns: ArrayLike) -> Ints:
        """Convert common times to one rank's own clock (to a nanosecond)."""
        when = np.asarray(ns, np.int64)
        guess = 2 * when - self.align(rank, when)
        return np.asarray(guess + when - self.align(rank, guess))

    def component_rows(self, rank: Ints) -> Ints:
        """Return each row's component."""
        return np.asarray(self.component[np.searchsorted(self.ranks, rank)])

    def tolerance_ns(self, ranks: Ints, other_ranks: Ints) -> Ints:
        """Return the smallest difference between times of two ranks that determines an order."""
        a, b = np.searchsorted(self.ranks, ranks), np.searchsorted(self.ranks, other_ranks)
        residual = np.maximum(self.residual_p50_ns[a], self.residual_p50_ns[b])
        return np.where(self.domain[a] == self.domain[b], SAME_CLOCK_TOLERANCE_NS, np.maximum(residual, 1))

    @property
    def components(self) -> int:
        """Number of parts of the run that cannot be compared."""
        return len(np.unique(self.component))


def hosts_of(tables: TableSet) -> list[str]:
    """Return each rank's host as recorded, or from the manifest; empty if unknown."""
    return [host for host, _, _ in clock_sources(tables)]


@memoized("hosts")
def clock_sources(tables: TableSet) -> list[tuple[str, bool, int | None]]:
    """Return each rank's host, whether its file has a time base, and its first event; one table at a time."""
    rank_records = []
    for rank, rows in tables.one_by_one("ranks"):
        recorded_host = str(rows["host"][0]) if len(rows) else ""
        host = recorded_host or tables.declared.hosts.get(str(rank), "")
        first_ns = int(rows["first_ns"][0]) if len(rows) and rows["events"][0] > 0 else None
        rank_records.append((host, bool(len(rows) and rows["base_ns"][0] > 0), first_ns))
    return rank_records
