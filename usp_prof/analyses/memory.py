"""Memory: the peak in use, what it consists of, and how much is left.

Peaks are the allocator's own totals, taken from the trace's events or from a given memory snapshot. CPUs have no such
total: torch counts their memory from the start of the profiler, without what was allocated before. Memory alive at
the peak is shown by the phase that allocated it. The result also lists copies between host and device, with bytes
over time as their bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from usp_prof.analyses.measures import ranges
from usp_prof.analyses.memory_peaks import Peak, device_rows, peak
from usp_prof.analyses.result import Listing, Result, columns_of, in_order
from usp_prof.columns.arrays import Ints
from usp_prof.model import hardware
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.memory_snapshot import MemorySnapshot
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import shares
from usp_prof.tables.table_set import TableSet

PEAK_MEMORY = Metric(
    "peak_memory", Unit.BYTES, Better.LOWER, "Peak memory",
    "Most memory in tensors at one time. Without a rank: the largest over ranks.", ("rank",),
)  # fmt: skip
TAKEN_MEMORY = Metric(
    "taken_memory", Unit.BYTES, Better.LOWER, "Memory taken",
    "Most memory at one time that tensors allocated after the profiler started, if the allocator reports no "
    "total (CPUs). Without a rank: the largest over ranks.", ("rank",),
)  # fmt: skip
PEAK_RESERVED = Metric(
    "peak_reserved_memory", Unit.BYTES, Better.LOWER, "Reserved memory",
    "Most memory reserved by the allocator at one time. Without a rank: the largest over ranks.", ("rank",),
)  # fmt: skip
LIVE_AT_PEAK = Metric(
    "live_at_peak", Unit.BYTES, Better.LOWER, "Alive at the peak",
    "Memory in use at the peak of the fullest rank, by the phase that allocated it.", ("phase",),
)  # fmt: skip
FRAGMENTATION = Metric(
    "fragmentation_fraction", Unit.FRACTION, Better.LOWER, "Fragmentation",
    "Share of reserved memory that no tensor uses at the peak. Without a rank: that of the fullest rank.", ("rank",),
    inputs="the allocator's totals of allocated and reserved bytes",
)  # fmt: skip
HEADROOM = Metric(
    "memory_headroom", Unit.FRACTION, Better.HIGHER, "Headroom",
    "Share of device memory that the allocator never reserved. Without a rank: that of the fullest rank.", ("rank",),
    inputs="the device's memory, or the allocator's total of reserved bytes",
)  # fmt: skip
ALLOCATOR_CALLS = Metric(
    "allocator_calls", Unit.COUNT, Better.LOWER, "Device allocations",
    "Calls per step that allocate or free device memory. Each stalls the host; a warm run has none.", ("rank",),
)  # fmt: skip
COPY_BANDWIDTH = Metric(
    "copy_bandwidth", Unit.BYTES_PER_SECOND, Better.HIGHER, "Copy bandwidth",
    "Bytes divided by time for the copies of one direction.", ("direction",),
)  # fmt: skip
METRICS = (
    PEAK_MEMORY, TAKEN_MEMORY, PEAK_RESERVED, LIVE_AT_PEAK, FRAGMENTATION, HEADROOM, ALLOCATOR_CALLS, COPY_BANDWIDTH,
)  # fmt: skip

_DIRECTION = re.compile(r"Mem(?:cpy|set|ory copy)\s*\(?(?P<direction>\w+)?", re.IGNORECASE)
_ALLOCATES = re.compile(r"^(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap)(Async)?(_v\d)?$")


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one direction, over all ranks."""

    direction: str
    count: int
    bytes: int
    time_ns: int

    def __add__(self, more: Copies) -> Copies:
        """Return the sum of both; `more` has the same direction."""
        return Copies(self.direction, self.count + more.count, self.bytes + more.bytes, self.time_ns + more.time_ns)

    @property
    def bandwidth(self) -> float:
        """Bytes per second over all copies, so that long copies weigh more than short ones."""
        return self.bytes / self.time_ns * 1e9 if self.time_ns else float("nan")


@dataclass(frozen=True, slots=True)
class MemoryResult(Result):
    """Peaks per rank, device memory, allocator calls per step and rank, and copies by direction."""

    peaks: tuple[Peak, ...]
    capacity: dict[int, int]
    allocator_calls: dict[int, float]
    copies: tuple[Copies, ...]
    notes: tuple[HealthRow, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()

    @property
    def fullest(self) -> Peak | None:
        """The peak of the rank with the most memory in use."""
        return max(self.peaks, key=lambda peak: (peak.allocated, -peak.rank), default=None)

    def headroom(self, peak: Peak) -> float:
        """Return the share of device memory that was never reserved, or NaN if the size or the peak is unknown."""
        if peak.since_recording:
            return float("nan")
        size = self.capacity.get(peak.rank, 0)
        used_bytes = max(peak.reserved_peak, peak.allocated)
        return (size - used_bytes) / size if size else float("nan")

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        values: list[Value] = []
        for of_rank in self.peaks:
            values += [Value(metric, figure, {"rank": of_rank.rank}) for metric, figure in self._figures(of_rank)]
        if self.fullest is not None:
            values += [Value(metric, figure) for metric, figure in self._figures(self.fullest)]
            values += [Value(LIVE_AT_PEAK, size, {"phase": phase}) for phase, size in self.fullest.live.items()]
        values += [Value(ALLOCATOR_CALLS, count, {"rank": rank}) for rank, count in self.allocator_calls.items()]
        if self.allocator_calls:
            values.append(Value(ALLOCATOR_CALLS, float(np.mean(list(self.allocator_calls.values())))))
        values += [Value(COPY_BANDWIDTH, copies.bandwidth, {"direction": copies.direction}) for copies in self.copies]
        return in_order(values)

    def _figures(self, peak: Peak) -> list[tuple[Metric, float]]:
        if peak.since_recording:
            return [(TAKEN_MEMORY, peak.allocated)]
        figures: list[tuple[Metric, float]] = [(PEAK_MEMORY, peak.allocated), (HEADROOM, self.headroom(peak))]
        if peak.reserved > 0:
            figures.append((PEAK_RESERVED, peak.reserved_peak))
            figures.append((FRAGMENTATION, (peak.reserved - peak.allocated) / peak.reserved))
        return figures

    def listing(self) -> Listing:
        """Return one row per rank, with the memory alive at its peak by phase."""
        phases = sorted({phase for peak in self.peaks for phase in peak.live})
        rows = self.peaks
        since = [peak.since_recording for peak in rows]
        since_start = {"taken_bytes": [peak.allocated if peak.since_recording else -1 for peak in rows]}
        total_peak = {"peak_bytes": [-1 if peak.since_recording else peak.allocated for peak in rows]}
        return {
            "rank": [peak.rank for peak in rows],
            "step": [peak.step for peak in rows],
            **({} if rows and all(since) else total_peak),
            **(since_start if any(since) else {}),
            "reserved_bytes": [peak.reserved_peak if peak.reserved_peak > 0 else -1 for peak in rows],
            "headroom_fraction": [HEADROOM.if_possible(self.headroom(peak)) for peak in rows],
            **{f"{phase.replace(' ', '_')}_bytes": [peak.live.get(phase, 0) for peak in rows] for phase in phases},
        }

    def snapshot_listing(self) -> Listing:
        """Return the snapshots as plain columns."""
        rows = self.snapshots
        return {
            **columns_of(rows, snapshot="name", rank="rank", device="device", in_use_bytes="allocated"),
            **columns_of(rows, peak_bytes="peak", reserved_bytes="reserved", unused_fraction="fragmentation"),
            **columns_of(rows, largest_free_bytes="largest_free", segments="segments"),
            "events": [len(snapshot.change) for snapshot in rows],
            **columns_of(rows, "out_of_memory"),
        }

    def site_listing(self) -> Listing:
        """Return the code lines that allocated memory as plain columns, largest first."""
        rows = [(snapshot, site) for snapshot in self.snapshots for site in snapshot.sites]
        rows.sort(key=lambda row: (-row[1].bytes, row[0].name, row[1].where))
        return {
            "snapshot": [snapshot.name for snapshot, _ in rows],
            "rank": [snapshot.rank for snapshot, _ in rows],
            "taken_at": [site.where for _, site in rows],
            "blocks": [site.blocks for _, site in rows],
            "in_use_bytes": [site.bytes for _, site in rows],
            "share": [
                site.bytes / snapshot.allocated if snapshot.allocated else float("nan") for snapshot, site in rows
            ],
        }

    def copy_listing(self) -> Listing:
        """Return the copies as plain columns."""
        return columns_of(self.copies, "direction", "count", "bytes", "time_ns", "bandwidth")


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> MemoryResult:
    """Analyze the memory of the selected ranks and steps."""
    ranks = selection.ranks_among(tables.ranks)
    peaks, calls, copies = [], {}, dict[str, Copies]()
    of_ranks = shares.of_each_rank(tables, partial(_of_rank, selection=selection), ranks)
    for rank, seen in zip(ranks, of_ranks, strict=True):
        peaks += [seen.peak] if seen.peak is not None else []
        for more in seen.copies:
            copies[more.direction] = copies[more.direction] + more if more.direction in copies else more
        if seen.allocator_calls is not None:
            calls[rank] = seen.allocator_calls
    snapshots = tuple(
        snapshot for snapshot in tables.assumptions.snapshots if snapshot.rank < 0 or snapshot.rank in ranks
    )
    peaks += _peaks_of(snapshots, without={peak.rank for peak in peaks})
    contradictory = [peak for peak in peaks if peak.contradicts_itself]
    peaks = sorted((peak for peak in peaks if not peak.contradicts_itself), key=lambda peak: peak.rank)
    notes = [_contradiction(peak) for peak in contradictory]
    notes += [_SINCE_RECORDING] if any(peak.since_recording for peak in peaks) else []
    notes += [] if peaks or contradictory or not ranks else [_NOT_RECORDED]
    notes += [_unknown_rank(snapshot) for snapshot in snapshots if snapshot.rank < 0]
    all_copies = tuple(copies[direction] for direction in sorted(copies))
    return MemoryResult(tuple(peaks), capacity_of_ranks(tables, ranks), calls, all_copies, tuple(notes), snapshots)


@dataclass(frozen=True, slots=True)
class _OfRank:
    """Memory figures from one rank's trace."""

    peak: Peak | None
    copies: list[Copies]
    allocator_calls: float | None
    """Per step, or `None` if launches were not recorded."""


def _of_rank(tables: TableSet, rank: int, selection: Selection) -> _OfRank:
    rows = device_rows(tables, rank)
    has_launches = len(tables.columns("launches", rank)) > 0
    return _OfRank(
        peak(tables, rank, rows, selection.takes_steps(rows["step"])),
        _copies(tables, rank, selection),
        _allocator_calls(tables, rank, selection) if has_launches else None,
    )


def _peaks_of(snapshots: tuple[MemorySnapshot, ...], without: set[int]) -> list[Peak]:
    """Return the peaks of ranks that have only snapshots; for a rank with several devices, that of the fullest one."""
    fullest: dict[int, MemorySnapshot] = {}
    for snapshot in snapshots:
        if (
            snapshot.rank >= 0
            and snapshot.rank not in without
            and (snapshot.rank not in fullest or snapshot.peak > fullest[snapshot.rank].peak)
        ):
            fullest[snapshot.rank] = snapshot
    return [
        Peak(rank, -1, -1, snapshot.peak, snapshot.held_at_peak, snapshot.held_peak, {})
        for rank, snapshot in fullest.items()
    ]


def _contradiction(peak: Peak) -> HealthRow:
    detail = f"the allocator reports {peak.allocated} bytes in use of {peak.reserved} reserved: no memory figures"
    return HealthRow("impossible_memory", Severity.ERROR, peak.rank, detail=detail)


def _unknown_rank(snapshot: MemorySnapshot) -> HealthRow:
    detail = f"{snapshot.name} does not name its rank; pass it as RANK=FILE"
    return HealthRow("snapshot_of_no_rank", Severity.INFO, detail=detail)


def line_of(tables: TableSet, rank: int) -> dict[str, Ints]:
    """Return one rank's memory after each allocator event, on its own clock."""
    rows = device_rows(tables, rank)
    return {name: rows[name] for name in ("start_ns", "step", "bytes", "allocated_bytes", "reserved_bytes")}


_SINCE_RECORDING = HealthRow(
    "memory_since_recording",
    Severity.INFO,
    detail="on a CPU, the profiler counts only memory allocated after it started, without weights and optimizer state",
)
_NOT_RECORDED = HealthRow(
    "no_memory_events",
    Severity.INFO,
    detail="no allocator events were recorded, so peak memory is unknown; record with profile_memory=True",
)


def capacity_of_ranks(tables: TableSet, ranks: Sequence[int]) -> dict[int, int]:
    """Return each rank's device memory, from the driver if recorded, otherwise from the device table."""
    capacity = {}
    for rank in ranks:
        row = tables.columns("ranks", rank)
        device = hardware.find(str(row["device"][0])) if len(row) else None
        recorded = int(row["device_memory"][0]) if len(row) else -1
        if recorded > 0 or device is not None:
            capacity[rank] = recorded if recorded > 0 else int(device.memory_bytes if device is not None else 0)
    return capacity


def _allocator_calls(tables: TableSet, rank: int, selection: Selection) -> float:
    launches = ranges.selected(tables, "launches", rank, selection)
    allocates = launches.satisfies("name", _ALLOCATES.search)
    return int(allocates.sum()) / ranges.step_count(tables, rank, selection)


def _copies(tables: TableSet, rank: int, selection: Selection) -> list[Copies]:
    """Return the sums of the copies by kernel name; several names can have the same direction."""
    kernels = ranges.selected(tables, "kernels", rank, selection)
    moved = kernels.take(kernels.matches("kind", "memcpy") & (kernels["bytes"] >= 0) & (kernels["dur_ns"] > 0))
    codes, names = moved.codes("name")
    copies = []
    for code in np.unique(codes).tolist():
        match = _DIRECTION.search(names[code])
        rows = codes == code
        size, time_ns = int(moved["bytes"][rows].sum()), int(moved["dur_ns"][rows].sum())
        copies.append(Copies((match["direction"] if match else None) or "unknown", int(rows.sum()), size, time_ns))
    return copies
