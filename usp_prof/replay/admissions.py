"""Admissions: a launch that met a full queue returns when work has ended, of its stream or of another one."""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import last_by, lookup, rows_by_code, rows_of, sorted_by
from usp_prof.replay.full_queues import ADMITTED_NS, ends_awaited
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.rank_edges import PartialWaits
from usp_prof.replay.rank_nodes import RankNodes


def add_admissions(rank: PartialWaits) -> None:
    """Make each launch that waited for room in the queue return when the work that it waited for has ended."""
    nodes, gap = rank.nodes, rank.gap
    freeing, admitted = freed_by(nodes)
    rank.edges.add(freeing, admitted, nodes.start[admitted] - nodes.end[freeing], EdgeKind.QUEUE)
    gap[admitted] = np.minimum(gap[admitted], 0)


def freed_by(nodes: RankNodes) -> tuple[Ints, Ints]:
    """Return the work that freed the queue, and the launch that waited for it.

    It is the last work of the launch's stream to end before the return, if it ended right before; otherwise the work of
    any stream that the launch probably waited for.
    """
    admitted = np.flatnonzero(nodes.kind == NodeKind.ADMITTED)
    device = np.flatnonzero(nodes.of_device)
    if not len(admitted):
        return admitted, admitted
    # Lane of the launched work, by event number of the call. Work without a call (-1) writes to the last entry.
    lane_of_call = np.full(int(max(nodes.event[admitted].max(), nodes.launch.max())) + 2, -1)
    lane_of_call[nodes.launch[device]] = nodes.lane[device]
    work_of_lane = {lane: device[rows] for lane, rows in rows_by_code(nodes.lane[device]).items()}
    source = np.full(len(admitted), -1)
    for lane, rows in rows_by_code(lane_of_call[nodes.event[admitted]]).items():
        if lane in work_of_lane:
            source[rows] = last_by(nodes.end, work_of_lane[lane], by=nodes.start[admitted[rows]])
    returned = nodes.start[admitted]
    is_other = (source < 0) | (returned - nodes.end[source] > ADMITTED_NS)
    by_end = sorted_by(nodes.end, device)
    calls = np.flatnonzero(nodes.kind == NodeKind.HOST)
    called = nodes.start[lookup(calls, rows_of(nodes.event[calls], nodes.event[admitted]), missing=-1)]
    place = ends_awaited(nodes.end[by_end], called[is_other], returned[is_other])
    source[is_other] = np.where(place >= 0, by_end[place], source[is_other])
    is_known = source >= 0
    return source[is_known], admitted[is_known]
