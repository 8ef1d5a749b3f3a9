"""Memory peak of a rank: the memory alive at the moment of highest use, by the phase that allocated it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import Intervals, time_of
from usp_prof.columns.table import Columns
from usp_prof.tables.table_set import TableSet

EARLIER = "before the recording"
_OPTIMIZER = re.compile(r"^Optimizer\.step|^train::optimizer\b")
_PHASES = ("optimizer", "backward", "forward")


@dataclass(frozen=True, slots=True)
class Peak:
    """One rank's moment of highest memory use, and the memory alive then by the phase that allocated it."""

    rank: int
    step: int
    at_ns: int
    allocated: int
    reserved: int
    reserved_peak: int
    live: dict[str, int]
    since_recording: bool = False
    """Whether the total counts from the start of the profiler (CPUs) and lacks memory allocated before."""

    @property
    def contradicts_itself(self) -> bool:
        """Whether more memory is in use than reserved. One of the two totals is wrong, and it is unknown which."""
        return 0 < self.reserved < self.allocated


def device_rows(tables: TableSet, rank: int) -> Columns:
    """Return the allocator events of the rank's device: the GPU if it did the work, otherwise the CPU."""
    memory = tables.columns("memory", rank)
    return memory.take(memory["device_type"] == int(tables.ran_on_gpu(rank)))


def peak(tables: TableSet, rank: int, rows: Columns, inside: Flags) -> Peak | None:
    """Return the peak among the selected events, or `None` if there are no events or no totals."""
    total = np.where(inside, rows["allocated_bytes"], -1)
    if not len(total) or total.max() < 0:
        return None
    place = int(np.argmax(total))
    at = int(rows["start_ns"][place])
    live = _live(tables, rank, rows, place)
    live_bytes = sum(live.values())
    allocated = int(total[place])
    if allocated > live_bytes:
        live[EARLIER] = allocated - live_bytes
    reserved = rows["reserved_bytes"]
    return Peak(
        rank,
        int(rows["step"][place]),
        at,
        allocated,
        int(reserved[place]),
        int(reserved[inside].max(initial=0)),
        live,
        since_recording=not tables.ran_on_gpu(rank),
    )


def _live(tables: TableSet, rank: int, rows: Columns, place: int) -> dict[str, int]:
    """Return the bytes allocated up to this event and not freed by then, by phase."""
    given_back = lifetimes(rows["address"], rows["bytes"])
    order = np.arange(len(rows))
    alive = (rows["bytes"] > 0) & (order <= place) & (given_back > place)
    bytes_of_phase = {}
    left = alive
    for phase, when in _phases(tables, rank).items():
        hit = left & when.holds(rows["start_ns"])
        left = left & ~hit
        if hit.any():
            bytes_of_phase[phase] = int(rows["bytes"][hit].sum())
    if left.any():
        bytes_of_phase["other"] = int(rows["bytes"][left].sum())
    return bytes_of_phase


def lifetimes(address: Ints, size: Ints) -> Ints:
    """Return for each allocation the position of the event that frees it, or the number of events if none does.

    Events are in time order. The next event at the same address frees the memory.
    """
    count = len(address)
    order = np.lexsort((np.arange(count), address))
    following = np.full(count, count, np.int64)
    is_given_back = (address[order[1:]] == address[order[:-1]]) & (size[order[1:]] < 0)
    following[order[:-1][is_given_back]] = order[1:][is_given_back]
    return following


def _phases(tables: TableSet, rank: int) -> dict[str, Intervals]:
    """Return when each phase ran on the host. A moment counts for the first phase that contains it."""
    ops, marks = tables.columns("ops", rank), tables.columns("annotations", rank)
    phases = {phase: time_of(ops, ops.matches("phase", phase)) for phase in _PHASES}
    phases["optimizer"] |= time_of(marks, marks.satisfies("name", _OPTIMIZER.search))
    return phases
