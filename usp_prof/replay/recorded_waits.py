"""Recorded waits: which work a stream or the host waits for, where the trace names it (table `device_waits`).

A CUDA event marks the end of the work launched on its stream before `cudaEventRecord`. The first work launched on a
stream after `cudaStreamWaitEvent` waits for it, and `cudaEventSynchronize` returns after it. `cudaStreamSynchronize`
returns after the work launched on the stream so far. Waits for events recorded before the trace began are not among
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import combinations, lookup, rows_of, sorted_by
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.tables.device_waits import EVENT_SYNC, STREAM_SYNC, STREAM_WAIT
from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWaits:
    """Waits of one rank: one entry per wait in each array."""

    call: Ints
    """Event number of the host call."""
    source: Ints
    """The awaited work."""
    target: Ints
    """The work that waits; -1 if the host waits."""

    def added_to(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """Return pairs of awaited and waiting work, with those of the recorded waits between streams."""
        is_between = self.target >= 0
        return np.append(source, self.source[is_between]), np.append(target, self.target[is_between])


def recorded_waits(tables: TableSet, nodes: RankNodes, launched_at: Ints) -> RecordedWaits:
    """Return the waits that one rank's trace names, if the awaited work is in the trace."""
    waits = tables.columns("device_waits", nodes.rank)
    if not len(waits):
        return RecordedWaits(*(np.zeros(0, np.int64) for _ in range(3)))
    launches, kernels = tables.columns("launches", nodes.rank), tables.columns("kernels", nodes.rank)

    def called_at(event: Ints) -> Ints:
        return lookup(launches["start_ns"] + nodes.host_shift, rows_of(launches["event"], event), missing=-1)

    of_stream = waits.matches("kind", STREAM_WAIT)
    of_event = waits.matches("kind", EVENT_SYNC) | of_stream
    call, record = waits["call_event"], waits["record_event"]
    is_named = (call >= 0) & np.where(of_event, record >= 0, waits.matches("kind", STREAM_SYNC))
    awaited_stream = np.where(of_event, waits["awaited_stream"], waits["stream"])
    until = called_at(np.where(of_event, record, call))
    source, target = np.full(len(waits), -1), np.full(len(waits), -1)
    row = rows_of(kernels["event"], nodes.event)
    device_work = sorted_by(nodes.start, np.flatnonzero(nodes.of_device & (row >= 0)))
    streams, number = combinations(kernels["device"][row[device_work]], kernels["stream"][row[device_work]])
    for place, (device, stream) in enumerate(streams):
        work = sorted_by(launched_at, device_work[number == place])
        own = np.flatnonzero(is_named & (waits["device"] == device) & (awaited_stream == stream))
        last = np.searchsorted(launched_at[work], until[own], side="right") - 1
        source[own] = lookup(work, last, missing=-1)
        own = np.flatnonzero(is_named & of_stream & (waits["device"] == device) & (waits["stream"] == stream))
        following = np.searchsorted(launched_at[work], called_at(call[own]))
        target[own] = np.append(work, -1)[following]
    is_used = (source >= 0) & (~of_stream | ((target >= 0) & (awaited_stream != waits["stream"])))
    return RecordedWaits(call[is_used], source[is_used], target[is_used])
