"""Nodes of one rank: its device work, and the host calls that launch work or wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_of_run, lookup, rows_of, sorted_within
from usp_prof.columns.table import Columns
from usp_prof.replay.full_queues import LONG_NS, usual_launch_ns, waited_for_room
from usp_prof.replay.graph import HOST_KINDS, LEFT_BY_CLOCKS_NS, NEVER, NodeKind
from usp_prof.tables.activities import COMPUTING_LANE, without_unpacking
from usp_prof.tables.table_set import TableSet

_KINDS = {
    "compute": NodeKind.COMPUTE,
    "communication": NodeKind.COMMUNICATION,
    "memcpy": NodeKind.COPY,
    "memset": NodeKind.COPY,
}
HOST_LANE = "host"
ROUNDING_NS = 1_000
"""Older traces round times to whole microseconds, so a call may seem to start before the one before it returned."""
STAGED_NS = 100_000
"""A call that stages a copy takes less time than this."""
STAGED_BYTES = 65_536
"""Copies up to this size from pageable memory to the device are staged: the call returns at once (CUDA API docs)."""


@dataclass(frozen=True, slots=True, eq=False)
class RankNodes:
    """One rank's nodes, sorted by lane and start: one entry per node in each array."""

    rank: int
    lane: Ints
    kind: Ints
    """Values of `NodeKind`."""
    start: Ints
    duration: Ints
    """`start` and `duration` are on the clock of the rank's device; host times are shifted to it."""
    step: Ints
    """-1 outside of all steps."""
    name: tuple[Ints, list[str]]
    """Codes and texts."""
    axis: tuple[Ints, list[str]]
    """Codes and texts; -1 for calls of the host."""
    event: Ints
    """Event number in the rank's file."""
    launch: Ints
    """Event number of the call that launched it; -1 if that call is not in the trace."""
    part: Ints
    """Row in the rank's `collectives`; -1 if not communication."""
    on_device: bool
    """Whether any work was launched, which means that the rank has a device."""
    lane_names: tuple[str, ...]
    """Names of the lanes by number."""
    host_shift: int
    """Offset that was added to host times."""
    end: Ints = field(init=False)
    """Ends on the same clock."""
    of_device: Flags = field(init=False)
    """Marks of device work; on ranks without a device, all nodes."""
    launch_node: Ints = field(init=False)
    """Node of the call that launched it; -1 if that call is not in the trace."""
    late_in_call: Flags = field(init=False)
    """Marks of work that was submitted at the end of a long call."""
    launched_at: Ints = field(init=False)
    """When the host called, or when the call returned (`late_in_call`); NEVER if the launch is not in the trace."""

    def __post_init__(self) -> None:
        """Compute the columns derived from the others."""
        object.__setattr__(self, "end", self.start + self.duration)
        object.__setattr__(self, "of_device", np.isin(self.kind, HOST_KINDS, invert=True))
        host = np.flatnonzero(self.kind == NodeKind.HOST)
        object.__setattr__(self, "launch_node", lookup(host, rows_of(self.event[host], self.launch), missing=-1))
        object.__setattr__(self, "late_in_call", self._late_in_call())
        called_at = np.where(self.late_in_call, self.end[self.launch_node], self.start[self.launch_node])
        object.__setattr__(self, "launched_at", np.where(self.launch_node >= 0, called_at, NEVER))

    def _late_in_call(self) -> Flags:
        """Mark the work that was submitted at the end of the call that launched it.

        A host that loses its core within a call submits the work afterwards. So work of a long call that starts after
        it, as exactly as the clocks agree, was submitted at its end.
        """
        call_ns = self.duration[self.launch_node]
        uncertain_ns = np.minimum(LEFT_BY_CLOCKS_NS, call_ns // 10)
        starts_after = self.start >= self.end[self.launch_node] - uncertain_ns
        return (self.launch_node >= 0) & (call_ns > LONG_NS) & starts_after

    @property
    def launched_work(self) -> Ints:
        """Device work whose launch is in the trace."""
        return np.flatnonzero(self.of_device & (self.launched_at > NEVER))

    @property
    def first_of_lane(self) -> Flags:
        """Marks of the first node of each lane."""
        return first_of_run(self.lane)

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self.lane_names)


def nodes_of(tables: TableSet, rank: int, host_shift: int) -> RankNodes:
    """Return one rank's nodes; `host_shift` converts host times to the clock of its device."""
    work = _activities(tables, rank)
    kind = work.by_text("kind", lambda text: _KINDS.get(text, NodeKind.COMPUTE), missing=0)
    names, texts = work.codes("name")
    axis = work.codes("axis")
    lane, lane_names = _lanes(work, kind)
    on_device = bool((work["launch_event"] >= 0).any())
    host = _host_calls(tables, rank, work, host_shift)
    if not on_device:
        host = {column: values[:0] for column, values in host.items()}
    # Device work, then host calls on a separate lane after all others.
    none = np.full(len(host["event"]), -1)
    columns = {
        "lane": np.append(lane, none + len(lane_names) + 1),
        "kind": np.append(kind, host["kind"]),
        "start": np.append(work["start_ns"], host["start"]),
        "duration": np.append(work["dur_ns"], host["duration"]),
        "step": np.append(work["step"], host["step"]),
        "event": np.append(work["event"], host["event"]),
        "launch": np.append(work["launch_event"], none),
        "part": np.append(work["collective"], none),
    }
    name = np.append(names, np.full(len(none), len(texts)))
    axis_code = np.append(axis[0], none)
    order = sorted_within(columns["lane"], columns["start"])
    sorted_columns = {key: np.asarray(value, np.int64).take(order) for key, value in columns.items()}
    return RankNodes(
        rank,
        name=(name[order], [*texts, HOST_LANE]),
        axis=(axis_code[order], axis[1]),
        on_device=on_device,
        lane_names=(*lane_names, HOST_LANE),
        host_shift=host_shift,
        **sorted_columns,
    )


def _activities(tables: TableSet, rank: int) -> Columns:
    """Return a rank's activities without the copies that unpack what arrived.

    On the lane of the computing threads they would seem to be compute that the transfer delays, and this delay would
    stay if an edit moves the transfer.
    """
    return without_unpacking(tables.columns("activities", rank))


def _lanes(work: Columns, kind: Ints) -> tuple[Ints, list[str]]:
    """Return lane numbers and names; compute threads share one lane, and each posted transfer has its own."""
    merged = {text: COMPUTING_LANE if text.split(" ")[0] == COMPUTING_LANE else text for text in work.codes("lane")[1]}
    names = sorted(set(merged.values()))
    lane_of_name = {name: lane for lane, name in enumerate(names)}
    lane = work.by_text("lane", lambda text: lane_of_name[merged[text]], missing=0)
    is_posted = work.satisfies("lane", lambda text: "p2p" in text) & (kind == NodeKind.COMMUNICATION)
    posted = int(is_posted.sum())
    lane[is_posted] = len(names) + np.arange(posted)
    return lane, [*names, *(["p2p"] * posted)]


def _host_calls(tables: TableSet, rank: int, work: Columns, shift: int) -> dict[str, Ints]:
    """Return the host calls that launch device work or wait for it; calls that wait also have a return node.

    The return is a `RETURN` node, or `ADMITTED` for a launch that waited for room in a full queue. Threads that never
    launch device work (NCCL's watchdog, a loader that pins memory) are ignored, because their waits delay nothing.
    """
    launches = tables.columns("launches", rank)
    starts_work = launches["kernels"] > 0
    thread = launches.codes("thread")[0]
    # By thread: whether it launches device work. The last entry is for calls whose thread is unknown (-1).
    is_host = np.zeros(int(thread.max(initial=-1)) + 2, dtype=bool)
    is_host[thread[starts_work]] = True
    waits = launches.matches("kind", "sync") | launches["blocking"] | waits_for_own_copy(tables, rank, shift)
    waits &= is_host[thread]
    queued = waited_for_room(launches, work, shift) & ~waits
    rows = np.flatnonzero(waits | starts_work)
    waits, queued = waits[rows], queued[rows]
    event, step = launches["event"][rows], launches["step"][rows]
    start, length = _in_turn(thread[rows], launches["start_ns"][rows] + shift, launches["dur_ns"][rows])
    zeros = np.zeros(len(rows), np.int64)
    # A call that waits has no duration; its return node has it. A launch that waited for room in the queue takes the
    # usual launch time before it waits.
    usual = usual_launch_ns(length[~waits & ~queued])
    own = np.where(waits, 0, np.where(queued, np.minimum(usual, length), length))
    call = {"event": event, "start": start, "duration": own, "kind": zeros + int(NodeKind.HOST), "step": step}
    return_kind = np.where(queued, int(NodeKind.ADMITTED), int(NodeKind.RETURN))
    back = {"event": event, "start": start + length, "duration": zeros, "kind": return_kind, "step": step}
    comes_back = waits | queued
    columns = {column: np.append(values, back[column][comes_back]) for column, values in call.items()}
    # A call that starts when the one before it returns comes after this return.
    turn = np.append(2 * np.arange(len(rows)), 2 * np.flatnonzero(comes_back) + 1)
    order = np.lexsort((turn, columns["start"]))
    return {column: values[order] for column, values in columns.items()}


def _in_turn(thread: Ints, start: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Return starts and lengths of calls, of which none starts before the one before it on its thread has returned.

    Only differences due to rounding are corrected; calls inside other calls remain.
    """
    order = sorted_within(thread, start)
    end = (start + length)[order]
    early = np.where(first_of_run(thread[order]), 0, np.roll(end, 1) - start[order])
    late_by = np.zeros(len(start), np.int64)
    late_by[order] = np.where((early > 0) & (early <= ROUNDING_NS), early, 0)
    return start + late_by, np.maximum(length - late_by, 0)


def waits_for_own_copy(tables: TableSet, rank: int, shift: int) -> Flags:
    """Mark the calls of asynchronous copies that wait nevertheless, because the memory is pageable.

    A copy to the host returns when it has ended. A copy to the device returns when the stream has reached it, unless it
    is small enough to be staged. Copies of pinned memory and copies within the device never wait, even if a copy
    happens to end within its call because the queue was empty.
    """
    launches, kernels = tables.columns("launches", rank), tables.columns("kernels", rank)
    waits = np.zeros(len(launches), dtype=bool)
    is_pageable = kernels.satisfies("name", lambda name: "Pageable" in name)
    copies = np.flatnonzero(is_pageable)
    call = rows_of(launches["event"], kernels["launch_event"][copies])
    length = lookup(launches["dur_ns"], call, missing=0)
    returned = lookup(launches["start_ns"] + launches["dur_ns"], call, missing=-1) + shift
    # A call to the device that returned before its copy began was staged.
    reached = returned + STAGED_NS >= kernels["start_ns"][copies]
    may_wait = (kernels["bytes"][copies] > STAGED_BYTES) | (length > STAGED_NS)
    waits[call[(call >= 0) & (_to_host(kernels)[copies] | (may_wait & reached))]] = True
    return waits


def _to_host(kernels: Columns) -> Flags:
    return kernels.satisfies("name", lambda name: "DtoH" in name or "Device -> Pageable" in name)
