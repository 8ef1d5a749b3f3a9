"""Parts: the events of a rank's communication, before groups and bytes are determined.

GPU: each communication kernel. CPU: each gloo range, with the c10d op that posted it. Without either (a GPU job
recorded without GPU events): the host ranges of `record_param_comms`.

NCCL runs the sends and receives of a batch as one kernel (`torch.distributed.batch_isend_irecv`). PyTorch records each
of them on the host. Their kernel is launched afterwards, when the batch ends, so no record is around its launch and its
arguments are empty. The batch contains what the launching thread recorded since its previous communication launch,
except for records around a launch of their own:

    host      |send to 3| |recv from 1|  |launch|
    device                                  |SendRecv|      a send to rank 3 and a receive from rank 1
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import numbers_of
from usp_prof.columns.rows import distinct, lookup, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.model.schema import Kind
from usp_prof.model.topology import Group
from usp_prof.tables.communication.arguments import arguments_of, coded_texts
from usp_prof.tables.communication.posts import around, marked_transfers, operation_of, posts_of_gloo, ranges_of
from usp_prof.tables.communication.posts import around as around_moments
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.classification import KINDS, WorkKind, operation
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame
from usp_prof.tables.events.links import Links, streams

RECORD = "record_param_comms"


class Carrier(StrEnum):
    """Kind of event for the parts of a trace."""

    KERNELS = "kernels"
    GLOO = "gloo"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of the frame, by start: the event of each part, and its post."""

    row: Ints
    """Event of the part; for host ranges the range."""
    carrier: Carrier
    post: Ints
    """The c10d op or record_param_comms; -1 when unknown."""
    posted_track: Ints
    """Thread and time of the post: marks around it show the purpose."""
    posted_at: Ints
    arguments: Columns
    """Arguments of each part (`communication.arguments`)."""
    operation: NDArray[np.object_]
    library: NDArray[np.object_]

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.row)

    @property
    def gloo(self) -> bool:
        """Whether the parts are gloo's ranges."""
        return self.carrier is Carrier.GLOO

    @property
    def on_host(self) -> bool:
        """Whether the parts are host ranges: the communication itself has no event."""
        return self.carrier is Carrier.HOST


@dataclass(frozen=True, slots=True)
class Membership:
    """Groups of one rank and, for each part, the group it ran in (index in `groups`; -1 if unknown)."""

    groups: tuple[Group, ...]
    of_part: Ints
    inferred: Flags
    """Whether the part's group is inferred from where and how it ran."""


def find_parts(frame: EventFrame, links: Links) -> Parts:
    """Return the parts of a trace."""
    is_communication = links.kind == KINDS.index(WorkKind.COMMUNICATION)
    if is_communication.any():
        library = lookup(links.library.dictionary.to_pylist(), numbers_of(links.library.indices), missing="")
        return _from_kernels(frame, links, np.flatnonzero(is_communication), library[is_communication])
    gloo = ranges_of(frame, MARKS, lambda name: name.startswith("gloo:"))
    if len(gloo):
        return _from_gloo(frame, gloo)
    if len(links.work):
        # Other device work was recorded: host calls without a kernel transfer nothing (groups of one rank, waits).
        nothing = np.zeros(0, np.int64)
        return _on_host(frame, nothing, arguments_of(frame, nothing), np.zeros(0, object))
    return _from_host(frame)


def communicator_streams(frame: EventFrame, parts: Parts) -> Ints:
    """Return a number per kernel for its possible communicator: its library and stream."""
    libraries, library = np.unique(parts.library.astype(str), return_inverse=True)
    return (streams(frame, parts.row) + 1) * (len(libraries) + 1) + library


def _from_kernels(frame: EventFrame, links: Links, work: Ints, library: NDArray[np.object_]) -> Parts:
    """Return a part per communication kernel; `work` has their indexes in `links`.

    The operation comes from the first source that knows it: arguments of kernel, mark or record; the names of the NCCL
    mark, the c10d op, the kernel; for a batch of sends and receives the pipeline's mark.
    """
    row, call = links.work[work], links.call[work]
    track = np.where(call >= 0, frame.track[call], -1)
    at = np.where(call >= 0, frame.start[call], frame.start[row])
    records = ranges_of(frame, HOST_OPS, lambda name: name == RECORD)
    ops = ranges_of(frame, HOST_OPS, lambda name: name.startswith("c10d::"))
    # Rows of the ranges around the launch; -1 for none.
    record, c10d = around(frame, records, track, at), around(frame, ops, track, at)
    # The parameters of an NCCL kernel may name other operations.
    of_kernel = frame.by_name(
        row, lambda name: operation(name.split("(", maxsplit=1)[0] if name.startswith("nccl") else name), object
    )
    # RCCL has one kernel for all operations.
    is_batch = np.isin(of_kernel, ("send_recv", "other")) & (record < 0) & (c10d < 0)
    if is_batch.any():
        kernel, post = split_batches(frame, (records, ops), (track, at), (record, c10d), is_batch)
        row, track, at = row[kernel], track[kernel], at[kernel]
        of_kernel, library = of_kernel[kernel], library[kernel]
        is_record = np.isin(post, records)
        record = np.where(is_record, post, record[kernel])
        c10d = np.where(is_record, c10d[kernel], np.maximum(post, c10d[kernel]))
    mark = around(frame, ranges_of(frame, MARKS, lambda name: name.startswith("nccl:")), track, at)
    # A mark names the tensors; the record around it only their list.
    arguments = arguments_of(frame, row, mark, record)
    op = _named_operation(arguments)
    for other in (operation_of(frame, mark), operation_of(frame, c10d), of_kernel):
        op = np.where((op == "other") | ((op == "send_recv") & (other != "other")), other, op)
    direction, _ = marked_transfers(frame, track, at)
    op = np.where((op == "send_recv") & (direction != ""), direction, op)
    op = _as_others_of_the_stream(op, of_kernel, streams(frame, row))
    post = np.where(record >= 0, record, c10d)
    return Parts(row, Carrier.KERNELS, post, track, at, arguments, op, library)


def _named_operation(arguments: Columns) -> NDArray[np.object_]:
    """Return the operation in "Collective name"; "other" if there is none."""
    codes, names = arguments.codes("name")
    return lookup([operation(name) if name else "other" for name in names], codes, missing="other")


def _as_others_of_the_stream(
    op: NDArray[np.object_], of_kernel: NDArray[np.object_], stream: Ints
) -> NDArray[np.object_]:
    """Assign unnamed SendRecv kernels the operation of the other kernels on their stream, if those agree.

    NCCL runs an all-to-all as a SendRecv kernel; work launched before the window has no host call that names it.
    """
    is_exchange = of_kernel == "send_recv"
    for stream_number in distinct(stream[is_exchange & (op == "send_recv")]).tolist():
        on_stream = is_exchange & (stream == stream_number)
        named_ops = set(op[on_stream].tolist()) - {"send_recv"}
        if len(named_ops) == 1 and not named_ops & {"send", "recv"}:
            op = np.where(on_stream, named_ops.pop(), op)
    return op


def _from_gloo(frame: EventFrame, row: Ints) -> Parts:
    """Return a part per gloo range; its operation is from arguments, the op that posted it, or its name."""
    of_range = frame.by_name(row, lambda name: operation(name.removeprefix("gloo:")), object)
    post = posts_of_gloo(frame, row, of_range)
    arguments = arguments_of(frame, row, post)
    op = _named_operation(arguments)
    for other in (operation_of(frame, post), of_range):
        op = np.where(op == "other", other, op)
    posted = np.where(post >= 0, post, row)
    library = np.full(len(row), "gloo", dtype=object)
    return Parts(row, Carrier.GLOO, post, frame.track[posted], frame.start[posted], arguments, op, library)


def _from_host(frame: EventFrame) -> Parts:
    """Return a part per communication record, and per NCCL mark without a record around it."""
    record = ranges_of(frame, HOST_OPS, lambda name: name == RECORD)
    mark = ranges_of(frame, MARKS, lambda name: name.startswith("nccl:"))
    record_of_mark = around(frame, record, frame.track[mark], frame.start[mark])
    # By event row: the mark inside a record, or -1. The record takes that mark's name.
    mark_of_record = np.full(len(frame) + 1, -1, np.int64)
    mark_of_record[record_of_mark[record_of_mark >= 0]] = mark[record_of_mark >= 0]
    row = frame.in_order_of_time(np.concatenate([record, mark[record_of_mark < 0]]))
    naming = np.where(mark_of_record[row] >= 0, mark_of_record[row], row)
    arguments = arguments_of(frame, row, naming)
    op = _named_operation(arguments)
    op = np.where(op != "other", op, operation_of(frame, naming))
    is_known = op != "other"  # others are init, wait and the like
    return _on_host(frame, row[is_known], arguments.take(is_known), op[is_known])


def _on_host(frame: EventFrame, row: Ints, arguments: Columns, op: NDArray[np.object_]) -> Parts:
    library = np.full(len(row), "nccl", dtype=object)
    return Parts(row, Carrier.HOST, row, frame.track[row], frame.start[row], arguments, op, library)


_DIRECTED = ("recv", "send")


def split_batches(
    frame: EventFrame, posts: tuple[Ints, Ints], launches: tuple[Ints, Ints], around: tuple[Ints, Ints], is_batch: Flags
) -> tuple[Ints, Ints]:
    """Return one entry per send or receive of a batch and per other kernel: the kernel's index, and the post or -1.

    Entries are sorted by kernel, and receives precede sends. `posts` are all records and all c10d ops. `launches` has
    the thread and time of each communication kernel's launch, `around` the record and the c10d op around it, and
    `is_batch` marks the kernels that may be batches.
    """
    (records, ops), at = posts, launches[1]
    # A record is inside the c10d op that posted it; without records, the ops describe the batch.
    outer = around_moments(frame, ops, frame.track[records], frame.start[records])
    free = np.setdiff1d(np.concatenate([records, np.setdiff1d(ops, outer)]), np.concatenate(around))
    direction = _directions(frame, free)
    free, direction = free[direction >= 0], direction[direction >= 0]
    kernel = _next_launches(launches, (frame.track[free], frame.start[free]))
    in_batch = (kernel >= 0) & is_batch[kernel]
    kernel, free, direction = kernel[in_batch], free[in_batch], direction[in_batch]
    order = np.lexsort((frame.start[free], direction, kernel))
    alone = np.setdiff1d(np.arange(len(at)), kernel)
    all_kernels = np.append(kernel[order], alone)
    all_posts = np.append(free[order], np.full(len(alone), -1))
    by_kernel = np.argsort(all_kernels, kind="stable")
    return all_kernels[by_kernel], all_posts[by_kernel]


def _next_launches(launches: tuple[Ints, Ints], moments: tuple[Ints, Ints]) -> Ints:
    """Return for each moment on a thread the index of the thread's next launch, or -1."""
    (track, at), (track_of_moment, when) = launches, moments
    following = np.full(len(when), -1, np.int64)
    for thread in distinct(track_of_moment).tolist():
        launched = sorted_by(at, np.flatnonzero(track == thread))
        of_thread = np.flatnonzero(track_of_moment == thread)
        place = np.searchsorted(at[launched], when[of_thread])
        has_following = place < len(launched)
        following[of_thread[has_following]] = launched[place[has_following]]
    return following


def _directions(frame: EventFrame, posts: Ints) -> Ints:
    """Return 0 for a receive, 1 for a send and -1 for all others, from the collective's name or that of the op."""
    codes, names = coded_texts(frame.arguments(posts, (Field("name", "Collective name", Kind.TEXT),))["name"])
    by_argument = np.array([_direction(name) for name in names], np.int64)[codes]
    by_name = frame.by_name(posts, lambda name: _direction(name.rpartition(":")[2]), np.int64)
    return np.where(by_argument >= 0, by_argument, by_name)


def _direction(name: str) -> int:
    word = operation(name) if name else ""
    return _DIRECTED.index(word) if word in _DIRECTED else -1
