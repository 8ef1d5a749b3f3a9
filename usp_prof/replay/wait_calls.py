"""Wait calls: what the host's calls before a launch show about the events that the launched work waits for.

    cudaEventRecord       marks the end of the work launched so far on the current stream
    cudaStreamWaitEvent   makes a stream wait for an event. The next launch is normally on this stream. It is that of
                          the same thread, or of another one that launches while this thread makes no calls

The trace names neither stream nor event. But the event was recorded before the wait call. If the thread recorded it
right after a launch and launched nothing else before it waited, it marks the end of that launch's work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup, rows_by_code, rows_of, sorted_by
from usp_prof.replay.graph import NEVER, NodeKind
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import RecordedWaits
from usp_prof.tables.table_set import TableSet

_WAIT_CALLS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
_RECORD_CALLS = tuple(
    f"{library}EventRecord{suffix}" for library in ("cuda", "hip", "cu") for suffix in ("", "WithFlags")
)


@dataclass(frozen=True, slots=True, eq=False)
class WaitCalls:
    """The wait calls before each launched node of one rank: one entry per node in each array."""

    in_trace: bool
    """Whether the trace has any wait calls."""
    recorded_by: Ints
    """When the last event before the wait call was recorded; NEVER without a wait call since the last launch."""
    marked: Ints
    """The work that this event marks; -1 if other launches may have come before the event."""
    is_single: Flags
    """Whether there is just one wait call since the last launch of the thread."""


def wait_calls(tables: TableSet, nodes: RankNodes, recorded: RecordedWaits) -> WaitCalls:
    """Return the wait calls before each launched node; calls whose wait is `recorded` do not count."""
    launches = tables.columns("launches", nodes.rank)
    is_wait = launches.matches("name", *_WAIT_CALLS)
    recorded_by, marked = np.full(len(nodes.lane), NEVER), np.full(len(nodes.lane), -1)
    if not is_wait.any():
        return WaitCalls(
            in_trace=False, recorded_by=recorded_by, marked=marked, is_single=np.zeros(len(nodes.lane), bool)
        )
    is_wait &= ~np.isin(launches["event"], recorded.call)
    is_record = launches.matches("name", *_RECORD_CALLS)
    launches_work, started, event = launches["kernels"] > 0, launches["start_ns"], launches["event"]
    # By call: for waits, when the last event was recorded (until the wait itself if the trace has no such calls), and
    # the launch that it marks. For launches, the wait call before.
    recorded_at = np.sort(started[is_record])
    of_wait = np.searchsorted(recorded_at, started, side="right") - 1
    recorded_ns = lookup(recorded_at, of_wait, missing=int(started.min()) - 1) if len(recorded_at) else started
    marked_launch, wait_of_launch = np.full(len(launches), -1), np.full(len(launches), -1)
    is_single = np.zeros(len(nodes.lane), bool)
    waits_before = np.zeros(len(launches), np.int64)
    next_call_ns = np.full(len(launches), np.iinfo(np.int64).max)
    for rows in rows_by_code(launches.codes("thread")[0]).values():
        calls = sorted_by(started, rows)
        next_call_ns[calls[:-1]] = started[calls[1:]]
        # By call: the last launch, wait and record up to it.
        launch, wait, record = (
            np.maximum.accumulate(np.where(marks[calls], np.arange(len(calls)), -1))
            for marks in (launches_work, is_wait, is_record)
        )
        marks_launch = is_wait[calls] & (launch >= 0) & (record > launch)
        marked_launch[calls[marks_launch]] = calls[launch[marks_launch]]
        has_wait = launches_work[calls] & (wait > np.append(-1, launch[:-1]))
        wait_of_launch[calls[has_wait]] = calls[wait[has_wait]]
        waited = np.cumsum(is_wait[calls])
        waits_before[calls] = waited - lookup(waited, np.append(-1, launch[:-1]), missing=0)
    # A thread that waits for another one, as for backward, lets this one's next launch wait.
    waits, by_start = np.flatnonzero(is_wait), sorted_by(started, np.flatnonzero(launches_work))
    following = lookup(by_start, np.searchsorted(started[by_start], started[waits]), missing=-1)
    is_of_other = (following >= 0) & (started[following] < next_call_ns[waits]) & (wait_of_launch[following] < 0)
    wait_of_launch[following[is_of_other]] = waits[is_of_other]
    device = nodes.launched_work
    row = rows_of(event, nodes.launch[device])
    wait_row = lookup(wait_of_launch, row, missing=-1)
    recorded_by[device] = np.where(wait_row >= 0, recorded_ns[wait_row] + nodes.host_shift, NEVER)
    marked_event = lookup(event, lookup(marked_launch, wait_row, missing=-1), missing=-1)
    marked[device] = lookup(device, rows_of(nodes.launch[device], marked_event), missing=-1)
    is_single[device] = lookup(waits_before, row, missing=0) == 1
    return WaitCalls(in_trace=True, recorded_by=recorded_by, marked=marked, is_single=is_single)


def issuing_lanes(tables: TableSet, nodes: RankNodes) -> Ints:
    """Return for each node the stream of the last work, other than communication, that its thread launched before it.

    PyTorch makes communication wait for the current stream, which is normally that one; -1 if there is none.
    """
    launches, device = tables.columns("launches", nodes.rank), nodes.launched_work
    thread = lookup(launches.codes("thread")[0], rows_of(launches["event"], nodes.launch[device]), missing=-1)
    lanes = np.full(len(nodes.lane), -1)
    for rows in rows_by_code(thread).values():
        work = sorted_by(nodes.launched_at, device[rows])
        is_own = nodes.kind[work] != NodeKind.COMMUNICATION
        last = np.maximum.accumulate(np.where(is_own, np.arange(len(work)), -1))
        lanes[work] = lookup(nodes.lane[work], np.append(-1, last[:-1]), missing=-1)
    return lanes


def is_of_graph(tables: TableSet, nodes: RankNodes, work: Ints) -> Flags:
    """Return whether each piece of work was launched as part of a CUDA graph."""
    launches = tables.columns("launches", nodes.rank)
    return lookup(
        launches.matches("kind", "graph_launch"), rows_of(launches["event"], nodes.launch[work]), missing=False
    )
