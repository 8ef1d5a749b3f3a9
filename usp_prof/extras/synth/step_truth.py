"""Step truth: the step of a simulated rank by part, from one sweep over its work.

The step is cut at every start and end, and each piece is assigned to one part by what runs in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.extras.synth.history import Part, RankLog


@dataclass(frozen=True, slots=True)
class StepTruth:
    """One rank's step on its device, in true time, with the parts that add up to it."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_comm_ns: dict[str, int]
    comm_ns: dict[str, int]
    hidden_comm_ns: dict[str, int]
    memcpy_ns: int
    idle_ns: dict[str, int]


@dataclass(frozen=True, slots=True)
class _TimedPart:
    """One part of a call on its rank, in true time."""

    axis: str
    start_ns: int
    end_ns: int
    sent_ns: int
    """Start of the transfer. Before that, a receive waits for a peer that has not sent, which is bubble."""


class _Pieces:
    """Elementary pieces of time: nothing starts or ends inside one.

    compute 0 to 4, a copy 3 to 6     edges 0, 3, 4, 6 and pieces of the lengths 3, 1 and 2
    """

    def __init__(self, log: RankLog) -> None:
        self.log = log
        starts = np.concatenate([block.start_ns for block in log.blocks])
        ends = np.concatenate([block.start_ns + block.dur_ns for block in log.blocks])
        self.compute = _merge(starts, ends)
        self.copies = [(copy.start_ns, copy.start_ns + copy.dur_ns) for copy in log.copies]
        self.comm = [_timed(part, log) for part in log.parts]
        self.windows = _windows(log, self)
        ranges = (*self.compute, *self.copies, *self.windows, *log.inputs, *log.syncs)
        cuts = [edge for pair in ranges for edge in pair]
        cuts += [edge for part in self.comm for edge in (part.start_ns, part.end_ns, part.sent_ns)]
        self.edges = np.unique(np.array(cuts, dtype=np.int64))
        self.length = np.diff(self.edges)

    def mask(self, pairs: list[tuple[int, int]]) -> Flags:
        """Return which pieces are inside any of the ranges: +1 at each start, -1 at each end; above 0 is inside."""
        level = np.zeros(len(self.edges), dtype=np.int64)
        if pairs:
            ranges = np.array(pairs, dtype=np.int64)
            np.add.at(level, np.searchsorted(self.edges, ranges[:, 0]), 1)
            np.add.at(level, np.searchsorted(self.edges, ranges[:, 1]), -1)
        return np.cumsum(level)[:-1] > 0


def partition(log: RankLog) -> list[StepTruth]:
    """Assign each piece of time of one rank's steps to a part, in this order.

    1. Compute.
    2. The axis of the communication that ends last (exposed).
    3. Copies.
    4. Idle, by cause: a receive without its peer (bubble), the input, a synchronization, else the host.
    """
    pieces = _Pieces(log)
    is_compute, is_copy = pieces.mask(pieces.compute), pieces.mask(pieces.copies)
    is_input, is_sync = pieces.mask(log.inputs), pieces.mask(log.syncs)
    axes = sorted({part.axis for part in pieces.comm})
    axis_of_piece = _axis_that_ends_last(pieces, axes)
    is_exposed_copy = is_copy & ~is_compute & (axis_of_piece == -1)
    is_idle = ~is_compute & (axis_of_piece == -1) & ~is_copy
    is_bubble = is_idle & pieces.mask([(part.start_ns, part.sent_ns) for part in pieces.comm])
    is_rest = is_idle & ~is_bubble
    causes = {
        "bubble": is_bubble,
        "input": is_rest & is_input,
        "sync": is_rest & ~is_input & is_sync,
        "host": is_rest & ~is_input & ~is_sync,
    }
    active = {
        axis: pieces.mask([(part.sent_ns, part.end_ns) for part in pieces.comm if part.axis == axis]) for axis in axes
    }
    exposed = {axis: ~is_compute & (axis_of_piece == number) for number, axis in enumerate(axes)}
    truths = []
    for (step, *_), window in zip(log.steps, pieces.windows, strict=True):
        total = partial(_total, pieces.length, pieces.mask([window]))
        truths.append(
            StepTruth(
                rank=log.rank,
                step=step,
                start_ns=window[0],
                end_ns=window[1],
                compute_ns=total(is_compute),
                exposed_comm_ns={axis: total(mask) for axis, mask in exposed.items()},
                comm_ns={axis: total(mask) for axis, mask in active.items()},
                hidden_comm_ns={axis: total(mask & is_compute) for axis, mask in active.items()},
                memcpy_ns=total(is_exposed_copy),
                idle_ns={cause: total(mask) for cause, mask in sorted(causes.items())},
            )
        )
    return truths


def _total(length: Ints, inside: Flags, mask: Flags) -> int:
    return int(length[mask & inside].sum())


def _axis_that_ends_last(pieces: _Pieces, axes: list[str]) -> Ints:
    """Return for each piece the index in `axes` of the communication that ends last, or -1."""
    axis_of_piece = np.full(len(pieces.length), -1, dtype=np.int64)
    latest_end = np.full(len(pieces.length), -1, dtype=np.int64)
    for part in pieces.comm:
        low, high = np.searchsorted(pieces.edges, (part.sent_ns, part.end_ns))
        ends_later = latest_end[low:high] < part.end_ns
        axis_of_piece[low:high][ends_later] = axes.index(part.axis)
        latest_end[low:high][ends_later] = part.end_ns
    return axis_of_piece


def _timed(part: Part, log: RankLog) -> _TimedPart:
    """Return when a part starts, when it ends, and when its transfer starts.

    A receive waits for a peer that has not sent: that is bubble. The same holds for a gloo send to a receiver that is
    not ready; it ends when its receiver has the data.
    """
    axis, starts, ends = part.call.group.axis, part.call.start, part.call.end
    start, end = starts[log.rank], ends[log.rank]
    is_send = part.direction == "send"
    over_gloo = not log.copies
    if part.direction == "recv" or (is_send and over_gloo):
        if is_send:
            end = min(end, ends[part.call.members[1]])
        return _TimedPart(axis, start, end, min(max(starts.values()), end))
    return _TimedPart(axis, start, end, start)


def _windows(log: RankLog, pieces: _Pieces) -> list[tuple[int, int]]:
    """Return the steps on the device: from the first activity launched inside a host mark to the first of the next."""
    if not log.copies:
        return [(begin, end) for _, begin, end in log.steps]
    # When the host launched each activity, and when it started.
    launched = [(copy.host_ns, copy.start_ns) for copy in log.copies]
    launched += [(int(block.host_ns[0]), int(block.start_ns[0])) for block in log.blocks]
    launched += [(part.host_ns, part.call.start[log.rank]) for part in log.parts]
    begins = [min(start for host, start in launched if begin <= host < end) for _, begin, end in log.steps]
    ends = [end for _, end in (*pieces.compute, *pieces.copies)] + [part.end_ns for part in pieces.comm]
    return list(zip(begins, [*begins[1:], max(ends)], strict=True))


def _merge(starts: Ints, ends: Ints) -> list[tuple[int, int]]:
    """Merge ranges that touch."""
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(is_first)[1:] - 1, [len(starts) - 1]))
    return [(int(start), int(end)) for start, end in zip(starts[is_first], reach[last], strict=True)]
