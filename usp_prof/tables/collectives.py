"""Table of collectives: one rank's part of each collective, send and receive.

Sources of a peer, in this order: the recorded peer; the pipeline's mark around it; the rank within a group that c10d
received. `c10d::send` does not name the group. The peer is set only if one of the rank's groups fits (of those on the
part's axis, if there are any); otherwise it stays unknown. NCCL's kernels name neither direction nor peer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import index_of
from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.rows import lookup
from usp_prof.model.schema import DURATION, RANK, START, STEP, Schema, flag, integer, text
from usp_prof.model.topology import Axis, AxisSource, Group
from usp_prof.tables.build import table
from usp_prof.tables.communication.arguments import first_shape, sizes
from usp_prof.tables.communication.parts import Membership, Parts
from usp_prof.tables.communication.posts import P2P, marked_transfers
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.classification import PHASES, after_backward, phase_finder
from usp_prof.tables.events.frame import EventFrame, compact
from usp_prof.tables.events.links import Links
from usp_prof.tables.parallelism.axis_names import axis_of_marks, described
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "collectives",
    "Each rank's part of each collective, send and receive; without a device event, the times are the host range's.",
    (
        RANK,
        integer("part", "Row number among this rank's parts, by start."),
        integer("event", "Event of the kernel (GPU) or gloo range (CPU); -1 when only the host range is known."),
        integer("op_event", "Event of the c10d op or record_param_comms; -1 when unknown."),
        text(
            "op",
            "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, "
            "recv, send_recv (a batch whose messages are unknown), barrier or other. A known batch has a row per "
            "message.",
        ),
        text("library", "nccl, rccl, gloo, deepep, ..."),
        text("group", "Key of the group: name@ranks, or @ranks where no name is known; empty when unknown."),
        text("axis", "Parallel axis (dp, dp_replicate, dp_shard, tp, cp, pp, ep, world, unknown)."),
        text("axis_source", "description, manifest, ranks, mark, inferred or none."),
        integer(
            "sequence", "Sequence number within the group and kind (collective or p2p), as recorded; -1 when unknown."
        ),
        integer("group_size", "Number of members; -1 when unknown."),
        integer("in_bytes", "Input bytes of this rank; -1 when unknown.", "bytes"),
        integer("out_bytes", "Output bytes of this rank; -1 when unknown.", "bytes"),
        text("shape", "Shape of the first input as JSON text (of a tensor list, of its first tensor)."),
        text("dtype", "Element type as PyTorch writes it."),
        integer("peer", "Global rank of the other side of a send or receive; -1 for none or unknown."),
        text("in_split", "Split sizes of an uneven all-to-all, as JSON text."),
        text("out_split", "Split sizes of the output, as JSON text."),
        flag("asynchronous", "Issued with async_op."),
        text("phase", "Phase of the host when it was posted: forward, backward, optimizer or empty."),
        text("lane", "Lane of the activity."),
        START,
        DURATION,
        STEP,
    ),
)


def build(frame: EventFrame, links: Links, parts: Parts, membership: Membership, steps: Steps) -> pa.Table:
    """Build the table, one row per part, in order of start."""
    row = parts.row
    axis, source = _axes(frame, parts, membership)
    recorded_size = parts.arguments["group_size"]
    known_size = lookup([group.size for group in membership.groups], membership.of_part, missing=-1)
    size = np.where(recorded_size > 0, recorded_size, known_size)
    bytes_in, bytes_out, dtype = _bytes(parts, size)
    lane_codes, lanes = lanes_of(frame, links, parts)
    within = steps.of_host if parts.on_host else steps.of_device
    columns = {
        "rank": frame.rank,
        "part": np.arange(len(row)),
        "event": np.full(len(row), -1) if parts.on_host else frame.event[row],
        "op_event": frame.event_at(parts.post),
        "op": parts.operation,
        "library": parts.library,
        "group": compact(membership.of_part % (len(membership.groups) + 1), [g.key for g in membership.groups] + [""]),
        "axis": axis,
        "axis_source": source,
        "sequence": parts.arguments["sequence"],
        "group_size": size,
        "in_bytes": bytes_in,
        "out_bytes": bytes_out,
        "shape": _shapes(parts),
        "dtype": dtype,
        "peer": _peers(frame, parts, membership, axis),
        "in_split": _splits(parts, "in_split"),
        "out_split": _splits(parts, "out_split"),
        "asynchronous": _asynchronous(parts),
        "phase": compact(_phases(frame, parts), PHASES),
        "lane": compact(lane_codes, lanes),
        "start_ns": frame.start[row],
        "dur_ns": frame.duration[row],
        "step": within(frame.start[row]),
    }
    return table(SCHEMA, columns, len(row))


def lanes_of(frame: EventFrame, links: Links, parts: Parts) -> tuple[Ints, list[str]]:
    """Return the lane of each part: its stream, its gloo worker, or a lane for sends and receives in flight."""
    row = parts.row
    if parts.gloo:
        # Sends and receives in flight share lanes over threads; collectives have a lane per thread.
        is_p2p = np.isin(parts.operation, P2P)
        track = np.where(is_p2p, 0, frame.track[row])
        lane = np.zeros(len(row), np.int64)
        for kind in (is_p2p, ~is_p2p):
            lane[kind] = split_lanes(track[kind], frame.start[row[kind]], frame.end[row[kind]])
        threads = frame.texts("thread", row)
        lane_names = [
            f"gloo p2p {k}" if sent else f"gloo {thread}{f'/{k}' if k else ''}"
            for thread, sent, k in zip(threads.tolist(), is_p2p.tolist(), lane.tolist(), strict=True)
        ]
    elif parts.on_host:
        lane_names = ["host"] * len(row)
    else:
        # Lane of device work by event; -1 for other events.
        lane_of_event = np.full(len(frame), -1, np.int64)
        lane_of_event[links.work] = links.named_lane
        return lane_of_event[row], links.lane_names
    distinct_names = sorted(set(lane_names))
    number_of_name = {name: number for number, name in enumerate(distinct_names)}
    return np.array([number_of_name[name] for name in lane_names], np.int64), distinct_names


def _axes(frame: EventFrame, parts: Parts, membership: Membership) -> tuple[pa.Array, pa.Array]:
    """Return the axis of the group's description, or of the marks around the post."""
    axes, sources = [*Axis], [*AxisSource]
    no_source, inferred = sources.index(AxisSource.NONE), sources.index(AxisSource.INFERRED)
    # One row per group: indices of its axis and source. `of_part` is -1 (the last row) without a group.
    of_group = [(axes.index(Axis(g.axis)), sources.index(AxisSource(g.axis_source))) for g in membership.groups]
    of_group.append((axes.index(Axis.UNKNOWN), no_source))
    axis, source = np.array(of_group)[membership.of_part].T
    source = np.where(membership.inferred & (source != no_source), inferred, source)
    # Marks determine the axis if the group has none or spans the job; -1: no mark.
    by_mark = axis_of_marks(frame, parts.posted_track, parts.posted_at)
    tells_none = (axis == axes.index(Axis.UNKNOWN)) | (axis == axes.index(Axis.WORLD))
    is_marked = tells_none & (by_mark >= 0)
    axis = np.where(is_marked, by_mark, axis)
    source = np.where(is_marked, sources.index(AxisSource.MARK), source)
    return compact(axis, [a.value for a in axes]), compact(source, [s.value for s in sources])


def _phases(frame: EventFrame, parts: Parts) -> Ints:
    """Return the phase of each post (index in `PHASES`)."""
    phase = phase_finder(frame)(parts.posted_track, parts.posted_at)
    unknown = np.flatnonzero(phase == 0)
    if len(unknown):
        is_late = after_backward(frame, parts.posted_track[unknown], parts.posted_at[unknown])
        phase[unknown[is_late]] = PHASES.index("backward")
    return phase


def _bytes(parts: Parts, size: Ints) -> tuple[Ints, Ints, NDArray[np.object_]]:
    """Return bytes in and out. Shapes describe only the input; the output follows from the operation."""
    into, out, dtype, by_shape = sizes(parts.arguments)
    op = parts.operation
    has_size = size > 0
    # Ratio of output to input; -1 if the operation or the group size leaves it open.
    derived = np.where(np.isin(op, ("all_reduce", "all_to_all", "broadcast", "reduce", "scatter")), into, -1)
    derived = np.where((op == "all_gather") & has_size, into * size, derived)
    derived = np.where((op == "reduce_scatter") & has_size, into // np.maximum(size, 1), derived)
    out = np.where(by_shape & (into >= 0), derived, out)
    # A send has no output. The only shape of a receive is that of its output.
    is_send, is_receive = by_shape & (op == "send"), by_shape & (op == "recv")
    out = np.where(is_send, 0, out)
    out = np.where(is_receive, into, out)
    return np.where(is_receive, 0, into), out, dtype


def _shapes(parts: Parts) -> pa.Array:
    codes, values = parts.arguments.codes("dims")
    return compact(codes, [first_shape(value) for value in values])


def _splits(parts: Parts, name: str) -> pa.Array:
    codes, values = parts.arguments.codes(name)
    even = values.index("[]") if "[]" in values else -1
    blank = values.index("") if "" in values else len(values)
    return compact(np.where(codes == even, blank, codes), [*values, ""])


def _asynchronous(parts: Parts) -> Flags:
    codes, values = parts.arguments.codes("asynchronous")
    return lookup([text.lower() in ("true", "1") for text in values], codes, missing=False)


_DIRECTED = ("send", "recv")
_PEER_IN_GROUP = Field("peer", "Concrete Inputs", item=2)


def _peers(frame: EventFrame, parts: Parts, membership: Membership, axes: pa.DictionaryArray) -> Ints:
    """Return the global rank of each part's peer; -1 for none or unknown."""
    source, destination = parts.arguments["source"], parts.arguments["destination"]
    is_send = parts.operation == "send"
    is_directed = np.isin(parts.operation, _DIRECTED)
    # As recorded. Some versions swap peer and own rank: take the one that is not this rank.
    expected, swapped = np.where(is_send, destination, source), np.where(is_send, source, destination)
    peer = np.where((expected >= 0) & (expected != frame.rank), expected, swapped)
    peer = np.where(peer == frame.rank, -1, peer)
    # Otherwise from the mark, or from the index within a group.
    _, marked = marked_transfers(frame, parts.posted_track, parts.posted_at)
    peer = np.where((peer < 0) & is_directed & (marked != frame.rank), marked, peer)
    unknown = np.flatnonzero((peer < 0) & is_directed & (parts.post >= 0))
    if len(unknown):
        axis_of_part = axes.take(index_of(unknown)).to_pylist()
        place_in_group = frame.arguments(parts.post[unknown], (_PEER_IN_GROUP,))["peer"]
        keys = list(zip(axis_of_part, place_in_group.tolist(), strict=True))
        peer_of_key = {key: _global_rank(membership.groups, frame.rank, *key) for key in set(keys)}
        peer[unknown] = [peer_of_key[key] for key in keys]
    return peer


def _global_rank(groups: Sequence[Group], rank: int, axis: str, place: int) -> int:
    """Return the only global rank for an index within a group, of the most likely groups; -1 for several or none.

    For pipelines of two stages, Megatron sends in one direction in the default group.
    """
    possible = [group for group in groups if place >= 0 and rank in group.ranks and len(group.ranks) > max(place, 1)]
    of_axis = [group for group in possible if group.axis == axis]
    spanning = [group for group in of_axis if described(group.description).sizes]
    default = [group for group in possible if group.description == "default_pg"]
    for likely in (spanning, of_axis, default, possible):
        peers = {group.ranks[place] for group in likely} - {rank}
        if peers:
            return peers.pop() if len(peers) == 1 else -1
    return -1
