"""Recorded waits: which work a stream or the host waits for, where the trace names it (table `device_waits`).

A CUDA event marks the end of the work launched on its stream before `cudaEventRecord`. The first work launched on a
stream after `cudaStreamWaitEvent` waits for it, and `cudaEventSynchronize` returns after it. `cudaStreamSynchronize`
returns after the work launched on the stream so far. Waits for events recorded before the trace began are not among
them. For example, d waits for b:

    calls that concern stream 7   launch a   launch b   record          launch c
    calls that concern stream 9                                  wait               launch d
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
    """Event number of the host call that waits or makes a stream wait."""
    source: Ints
    """Node of the awaited work."""
    target: Ints
    """Node of the work that waits; -1 if the host waits."""

    def added_to(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """Return pairs of awaited and waiting work, with those of the recorded waits between streams."""
        is_between = self.target >= 0
        return np.append(source, self.source[is_between]), np.append(target, self.target[is_between])


def recorded_waits(tables: TableSet, nodes: RankNodes) -> RecordedWaits:
    """Return the waits that one rank's trace names, if the awaited work is in the trace."""
    waits = tables.columns("device_waits", nodes.rank)
    if not len(waits):
        return RecordedWaits(*(np.zeros(0, np.int64) for _ in range(3)))
    launches, kernels = tables.columns("launches", nodes.rank), tables.columns("kernels", nodes.rank)

    def called_at(event: Ints) -> Ints:
        return lookup(launches["start_ns"] + nodes.host_shift, rows_of(launches["event"], event), missing=-1)

    call, is_stream_wait = waits["call_event"], waits.matches("kind", STREAM_WAIT)
    has_event = waits.matches("kind", EVENT_SYNC) | is_stream_wait
    awaited_stream = np.where(has_event, waits["awaited_stream"], waits["stream"])
    # The call up to which the awaited work was launched: it records the event, or syncs the stream; -1 if unknown.
    last_call = np.where(has_event, waits["record_event"], np.where(waits.matches("kind", STREAM_SYNC), call, -1))
    is_named = (call >= 0) & (last_call >= 0)
    source, target = np.full(len(waits), -1), np.full(len(waits), -1)
    kernel_row = rows_of(kernels["event"], nodes.event)
    # Sorted by start, so that work of one launch (of a CUDA graph) stays in this order.
    device_work = sorted_by(nodes.start, np.flatnonzero(nodes.of_device & (kernel_row >= 0)))
    row = kernel_row[device_work]
    streams, number = combinations(kernels["device"][row], kernels["stream"][row])
    for place, (device, stream) in enumerate(streams):
        work = sorted_by(nodes.launched_at, device_work[number == place])
        is_here = is_named & (waits["device"] == device)
        awaits = np.flatnonzero(is_here & (awaited_stream == stream))
        last = np.searchsorted(nodes.launched_at[work], called_at(last_call[awaits]), side="right") - 1
        source[awaits] = lookup(work, last, missing=-1)
        delays = np.flatnonzero(is_here & is_stream_wait & (waits["stream"] == stream))
        following = np.searchsorted(nodes.launched_at[work], called_at(call[delays]))
        target[delays] = lookup(work, following, missing=-1)
    # Work waits for earlier work of its own stream anyway.
    is_between = (target >= 0) & (awaited_stream != waits["stream"])
    is_used = (source >= 0) & (~is_stream_wait | is_between)
    return RecordedWaits(call[is_used], source[is_used], target[is_used])
