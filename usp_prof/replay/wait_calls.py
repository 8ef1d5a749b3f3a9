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
from usp_prof.columns.table import Columns
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


@dataclass(frozen=True, slots=True, eq=False)
class _HostCalls:
    """The host calls of one rank: one entry per row of `launches` in each array."""

    wait_before: Ints
    """For launches: the last wait call since the thread's previous launch; -1 for none."""
    waits_before: Ints
    """For launches: number of wait calls since the thread's previous launch."""
    marked_launch: Ints
    """For wait calls: the launch whose work ends with the last event; -1 if unknown."""
    next_call_ns: Ints
    """When the thread makes its next call."""


def wait_calls(tables: TableSet, nodes: RankNodes, recorded: RecordedWaits) -> WaitCalls:
    """Return the wait calls before each launched node; calls whose wait is `recorded` do not count."""
    launches = tables.columns("launches", nodes.rank)
    is_wait = launches.matches("name", *_WAIT_CALLS)
    recorded_by, marked = np.full(len(nodes.lane), NEVER), np.full(len(nodes.lane), -1)
    is_single = np.zeros(len(nodes.lane), bool)
    in_trace = bool(is_wait.any())
    if in_trace:
        calls = _host_calls(launches, is_wait & ~np.isin(launches["event"], recorded.call))
        device = nodes.launched_work
        launch = rows_of(launches["event"], nodes.launch[device])
        wait = lookup(calls.wait_before, launch, missing=-1)
        recorded_by[device] = np.where(wait >= 0, _recorded_ns(launches)[wait] + nodes.host_shift, NEVER)
        marked_event = lookup(launches["event"], lookup(calls.marked_launch, wait, missing=-1), missing=-1)
        marked[device] = lookup(device, rows_of(nodes.launch[device], marked_event), missing=-1)
        is_single[device] = lookup(calls.waits_before, launch, missing=0) == 1
    return WaitCalls(in_trace=in_trace, recorded_by=recorded_by, marked=marked, is_single=is_single)


def _recorded_ns(launches: Columns) -> Ints:
    """Return when the last event before each call was recorded; the call's own start if the trace has no such calls."""
    start_ns = launches["start_ns"]
    recorded_ns = np.sort(start_ns[launches.matches("name", *_RECORD_CALLS)])
    if not len(recorded_ns):
        return start_ns
    last = np.searchsorted(recorded_ns, start_ns, side="right") - 1
    return lookup(recorded_ns, last, missing=int(start_ns.min()) - 1)


def _host_calls(launches: Columns, is_wait: Flags) -> _HostCalls:
    """Return what precedes each call on its thread, and the waits of one thread for the next launch of another."""
    start_ns, is_launch = launches["start_ns"], launches["kernels"] > 0
    is_record = launches.matches("name", *_RECORD_CALLS)
    calls = _HostCalls(
        wait_before=np.full(len(launches), -1),
        waits_before=np.zeros(len(launches), np.int64),
        marked_launch=np.full(len(launches), -1),
        next_call_ns=np.full(len(launches), np.iinfo(np.int64).max),
    )
    for rows in rows_by_code(launches.codes("thread")[0]).values():
        thread = sorted_by(start_ns, rows)
        calls.next_call_ns[thread[:-1]] = start_ns[thread[1:]]
        launch, wait, record = (_last_marked(marks[thread]) for marks in (is_launch, is_wait, is_record))
        launch_before = np.append(-1, launch[:-1])
        marks_launch = is_wait[thread] & (launch >= 0) & (record > launch)
        calls.marked_launch[thread[marks_launch]] = thread[launch[marks_launch]]
        has_wait = is_launch[thread] & (wait > launch_before)
        calls.wait_before[thread[has_wait]] = thread[wait[has_wait]]
        waits = np.cumsum(is_wait[thread])
        calls.waits_before[thread] = waits - lookup(waits, launch_before, missing=0)
    # A thread that waits for another one, as for backward, lets this one's next launch wait.
    waiting, by_start = np.flatnonzero(is_wait), sorted_by(start_ns, np.flatnonzero(is_launch))
    following = lookup(by_start, np.searchsorted(start_ns[by_start], start_ns[waiting]), missing=-1)
    is_of_other = (following >= 0) & (start_ns[following] < calls.next_call_ns[waiting])
    is_of_other &= calls.wait_before[following] < 0
    calls.wait_before[following[is_of_other]] = waiting[is_of_other]
    return calls


def _last_marked(marks: Flags) -> Ints:
    """Return for each place the last marked one up to it; -1 for none."""
    return np.maximum.accumulate(np.where(marks, np.arange(len(marks)), -1))


def issuing_lanes(tables: TableSet, nodes: RankNodes) -> Ints:
    """Return for each node the stream of the last work, other than communication, that its thread launched before it.

    PyTorch makes communication wait for the current stream, which is normally that one; -1 if there is none.
    """
    launches, device = tables.columns("launches", nodes.rank), nodes.launched_work
    thread = lookup(launches.codes("thread")[0], rows_of(launches["event"], nodes.launch[device]), missing=-1)
    lanes = np.full(len(nodes.lane), -1)
    for rows in rows_by_code(thread).values():
        work = sorted_by(nodes.launched_at, device[rows])
        last = _last_marked(nodes.kind[work] != NodeKind.COMMUNICATION)
        lanes[work] = lookup(nodes.lane[work], np.append(-1, last[:-1]), missing=-1)
    return lanes


def is_of_graph(tables: TableSet, nodes: RankNodes, work: Ints) -> Flags:
    """Return whether each piece of work was launched as part of a CUDA graph."""
    launches = tables.columns("launches", nodes.rank)
    return lookup(
        launches.matches("kind", "graph_launch"), rows_of(launches["event"], nodes.launch[work]), missing=False
    )
