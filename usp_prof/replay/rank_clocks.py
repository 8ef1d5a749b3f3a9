"""Rank clocks: offsets between host and device of each rank, and between devices, derived from causality.

Timestamps have errors of tens of microseconds. Three facts bound these errors:

  launch      no kernel starts before its launch                       shift the host earlier if violated
  sync        no stream sync returns before the copy it waits for      shift the host later if violated
  collective  all participants end together                            shift the rank by its median deviation

The run's clocks (`tables.clock`) align hosts. The offsets found here are added to them, for the replay only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import last_by, middles, numbered, rows_by_code, rows_of
from usp_prof.columns.table import Columns
from usp_prof.tables import calls, clock
from usp_prof.tables.matching.clocks import Clock
from usp_prof.tables.table_set import TableSet, memoized

LARGEST_OFFSET_NS = 2_000_000
"""A larger violation is not a clock offset: device timestamps are corrected to well below a millisecond."""
SAME_END_NS = 10_000
"""Participants of one call end this far apart even on one clock, so a smaller deviation is ignored."""


@dataclass(frozen=True, slots=True)
class RankClocks:
    """Conversion between the clocks of a rank's host and device and the common clock of the replay."""

    clock: Clock
    host_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: offset added to host times, in addition to `device_ns`."""
    device_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: offset added to all of its times, in addition to the run's clock."""

    def align_device(self, rank: int, ns: ArrayLike) -> Ints:
        """Convert device times of a rank to the common clock."""
        return np.asarray(self.clock.align(rank, ns) + self.device_ns.get(rank, 0))

    def align_host(self, rank: int, ns: ArrayLike) -> Ints:
        """Convert host times of a rank to the common clock."""
        return np.asarray(self.align_device(rank, ns) + self.host_ns.get(rank, 0))

    def local_device(self, rank: int, ns: ArrayLike) -> Ints:
        """Convert common times to the clock of a rank's device."""
        return self.clock.local(rank, np.asarray(ns) - self.device_ns.get(rank, 0))

    def local_host(self, rank: int, ns: ArrayLike) -> Ints:
        """Convert common times to the clock of a rank's host."""
        return self.local_device(rank, np.asarray(ns) - self.host_ns.get(rank, 0))


@memoized("rank clocks")
def rank_clocks(tables: TableSet) -> RankClocks:
    """Return the clocks of all ranks."""
    clocks = clock.fit_clocks(tables)
    host_ns = {rank: offset for rank in tables.ranks if (offset := host_offset(tables, rank))}
    return RankClocks(clocks, host_ns, _device_offsets(tables, clocks))


def host_offset(tables: TableSet, rank: int) -> int:
    """Return the offset of a rank's host times that makes launches and syncs consistent with its device.

    It is the smallest correction within the bounds. If the bounds conflict, launches take precedence, because the copy
    that a sync waits for is only inferred.
    """
    launches, work = tables.columns("launches", rank), tables.columns("activities", rank)
    row = rows_of(launches["event"], work["launch_event"])
    linked = row >= 0
    if not linked.any():
        return 0
    delay = work["start_ns"][linked] - launches["start_ns"][row[linked]]
    latest = int(delay.min())
    earliest = _sync_bound(launches, work, row)
    offset = min(max(0, earliest), latest) if latest >= 0 else latest
    return offset if abs(offset) <= LARGEST_OFFSET_NS else 0


def _sync_bound(launches: Columns, work: Columns, row: Ints) -> int:
    """Return the minimum host offset with which every stream sync returns after the copy launched before it.

    A copy to the host is followed by a sync of its stream (`.item()`), so its launch is the thread's last one before
    the sync.
    """
    syncs = np.flatnonzero(launches.matches("name", "cudaStreamSynchronize", "hipStreamSynchronize"))
    if not len(syncs):
        return 0
    is_copy = work.matches("kind", "memcpy") & (row >= 0)
    # By call: the end of the copy that it launched; -1 if it launched none.
    copy_end = np.full(len(launches), -1, np.int64)
    copy_end[row[is_copy]] = (work["start_ns"] + work["dur_ns"])[is_copy]
    thread, bound = launches.codes("thread")[0], 0
    for of_thread in rows_by_code(thread).values():
        launching = of_thread[launches["kernels"][of_thread] > 0]
        own_syncs = syncs[np.isin(syncs, of_thread)]
        before = last_by(launches["start_ns"], launching, by=launches["start_ns"][own_syncs])
        has_launch = before >= 0
        end = copy_end[before[has_launch]]
        early = end - (launches["start_ns"] + launches["dur_ns"])[own_syncs[has_launch]]
        early = early[(end >= 0) & (early <= LARGEST_OFFSET_NS)]
        bound = max(bound, int(early.max(initial=0)))
    return bound


def _device_offsets(tables: TableSet, clocks: Clock) -> dict[int, int]:
    """Return the offsets of ranks with a device that end their calls earlier or later than the others.

    The offset is the median over calls of a rank's deviation from the median end of the call. Offsets below
    `SAME_END_NS` are left out.
    """
    matched = calls.match_calls(tables)
    columns = matched.columns()
    number, rank_of_part, end = [], [], []
    ties = ~columns.matches("matched_by", "p2p") & (matched.parts.of_each_call() > 1)
    for rank in tables.ranks:
        parts = matched.parts.of_rank(rank, "call", "part")
        collectives = tables.columns("collectives", rank)
        chosen = ties[parts["call"]]
        if not tables.ran_on_gpu(rank) or not chosen.any():
            continue
        part = parts["part"][chosen]
        number.append(parts["call"][chosen])
        rank_of_part.append(np.full(len(part), rank))
        end.append(clocks.align(rank, collectives["start_ns"][part] + collectives["dur_ns"][part]))
    if not number:
        return {}
    call, rank_of_end, ended = (np.concatenate(column) for column in (number, rank_of_part, end))
    offsets: dict[int, int] = {}
    for _ in range(3):  # with two ranks, each is half the difference away; converges in a few rounds
        deviation = ended - _median_per_call(call, ended)
        moves = {rank: -int(np.median(deviation[rows])) for rank, rows in rows_by_code(rank_of_end).items()}
        if not any(moves.values()):
            break
        for rank, by in moves.items():
            offsets[rank] = offsets.get(rank, 0) + by
            ended = np.where(rank_of_end == rank, ended + by, ended)
    if not offsets:
        return {}
    base = int(np.median(list(offsets.values())))
    return {rank: by - base for rank, by in offsets.items() if SAME_END_NS <= abs(by - base) <= LARGEST_OFFSET_NS}


def _median_per_call(call: Ints, ended: Ints) -> Ints:
    """Return the median end of the call for each participant."""
    number = numbered(call)[1]
    lower, upper = middles(number, ended)
    return np.asarray((lower + (upper - lower) // 2)[number])
