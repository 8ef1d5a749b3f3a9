"""Lost device work: the time in which it may have run.

A launch whose kernel is missing ran after its call. Work on a stream runs in launch order, so it ended before the next
recorded work of its stream began. The stream of lost work is unknown. Compute and copies are assumed to run on the
stream with most of the recorded compute, communication on the streams of communication.
"""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import EMPTY, Intervals, union, union_of
from usp_prof.columns.rows import lookup, rows_of
from usp_prof.tables.events.host_calls import LOST_COMMUNICATION, LOST_COMPUTE, LOST_COPY
from usp_prof.tables.table_set import TableSet


def lost_time(tables: TableSet, rank: int) -> Intervals:
    """Return the time in which lost device work may have run."""
    launches = tables.columns("launches", rank)
    is_lost = launches.matches("lost", LOST_COMMUNICATION, LOST_COPY, LOST_COMPUTE)
    if not is_lost.any():
        return EMPTY
    kernels, launched = tables.columns("kernels", rank), launches["start_ns"]
    end = int(tables.columns("ranks", rank)["last_ns"][0])
    launched_at = lookup(launched, rows_of(launches["event"], kernels["launch_event"]), missing=-1)
    is_communication = kernels.matches("kind", "communication")
    possible = []
    for lost, recorded in (
        (launches.matches("lost", LOST_COMMUNICATION), is_communication),
        (launches.matches("lost", LOST_COPY, LOST_COMPUTE), _of_busiest_stream(kernels["stream"], ~is_communication)),
    ):
        has_launch = recorded & (launched_at >= 0)
        possible.append(_windows(launched[lost], launched_at[has_launch], kernels["start_ns"][has_launch], end))
    return union_of(possible)


def _of_busiest_stream(stream: Ints, chosen: Flags) -> Flags:
    """Return the chosen work of the stream that has most of it."""
    streams, count = np.unique(stream[chosen], return_counts=True)
    return chosen & (stream == streams[np.argmax(count)]) if len(streams) else chosen


def _windows(lost: Ints, launched: Ints, started: Ints, end: int) -> Intervals:
    """Return the time from each lost launch to the begin of the next recorded work in launch order.

    Work that was launched before is a lower bound: on its stream, the lost work began after it.
    """
    order = np.argsort(launched, kind="stable")
    launched, started = launched[order], np.maximum.accumulate(started[order])
    place = np.searchsorted(launched, lost, side="right")
    before = np.append(started, 0)[place - 1] if len(started) else np.zeros(len(lost), np.int64)
    before = np.where(place > 0, before, lost)
    return union(np.maximum(lost, before), np.append(started, end)[place])
